"""``nooom measure`` around programs of plain torch: figures, ends, and what it leaves alone."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nooom.formulas.gpus import GPUS

CONTEXT_BYTES = GPUS["a100-80gb"].context_bytes or 0

LOOP = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = model(torch.randn(64, 512, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("PEAKS", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), torch.cuda.memory_stats()["active_bytes.all.peak"])
"""
ONE_MIB = "import torch; kept = torch.ones(1 << 18, device='cuda')\n"


def test_the_figures_are_those_that_the_program_reads_itself(measure: Any) -> None:
    measured = measure(LOOP)
    assert (measured.code, measured.document["exit_code"], measured.document["schema_version"]) == (0, 0, 1)
    assert (measured.document["device"], measured.document["source"]) == ("phantom", "emulated")
    assert measured.document["gpu"]["name"] == "NVIDIA A100-SXM4-80GB"
    one = measured.process
    names = ("max_allocated_bytes", "max_reserved_bytes", "max_active_bytes")
    assert [one[name] for name in names] == measured.printed("PEAKS")
    assert one["device_bytes"] == one["max_reserved_bytes"] + CONTEXT_BYTES
    assert one["command"][1:] == ["program.py"]
    assert one["gpus"] == [{"index": 0, **{name: one[name] for name in (*names, "device_bytes")}}]
    assert (one["oom"], one["invented_answers"]) == (None, [])


def test_a_program_that_resets_its_peaks_does_not_hide_them(measure: Any) -> None:
    measured = measure(
        "import torch\n"
        "large = torch.ones(1 << 24, device='cuda'); del large\n"
        "torch.cuda.reset_peak_memory_stats()\n"
        "print('PEAK', torch.cuda.max_memory_allocated())\n"
    )
    assert measured.printed("PEAK") == [0]
    assert measured.process["max_allocated_bytes"] == 64 << 20


def test_out_of_memory_says_what_was_tried_and_ends_as_the_program_does(measure: Any) -> None:
    program = "import torch\nkept = torch.ones(1 << 28, dtype=torch.uint8, device='cuda')\ntorch.empty(768 << 20, dtype=torch.uint8, device='cuda')\n"
    measured = measure(program, gpu="t4-16gb", options=("--gpu-memory", "1GiB"))
    assert measured.code == measured.document["exit_code"] == 1
    oom = measured.process["oom"]
    assert (oom["tried_bytes"], oom["times"]) == (768 << 20, 1)
    assert oom["message"].startswith("CUDA out of memory. Tried to allocate 768.00 MiB.")
    assert measured.process["max_allocated_bytes"] == 256 << 20


def test_an_out_of_memory_that_the_program_catches_is_told_apart(measure: Any) -> None:
    program = "import torch\ntry:\n    torch.empty(2 << 30, dtype=torch.uint8, device='cuda')\nexcept torch.OutOfMemoryError:\n    pass\n"
    measured = measure(program, gpu="t4-16gb", options=("--gpu-memory", "1GiB"))
    assert measured.code == 0
    assert measured.process["oom"] == {"tried_bytes": 2 << 30, "times": 1, "message": None}


def test_figures_are_kept_when_it_ends_in_an_exception(measure: Any) -> None:
    measured = measure(ONE_MIB + "raise ValueError('mine')")
    assert (measured.code, measured.document["exit_code"]) == (1, 1)
    assert measured.process["max_allocated_bytes"] == 1 << 20


# The command's own process has no CUDA; each that it starts ends otherwise, and it ends as the last one did.
ENDS = """
import os, signal, sys, time, torch
def ends(how):
    kept = torch.ones(1 << 18, device="cuda")
    if how == "sys.exit":
        sys.exit(3)
    if how == "os._exit":
        os._exit(4)
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)
for how in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        ends(how)
    status = os.waitpid(child, 0)[1]
    print("ENDED", child, os.waitstatus_to_exitcode(status), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""


def test_figures_are_kept_however_a_process_ends_but_for_one_that_is_killed(measure: Any) -> None:
    codes = {"sys.exit": 3, "os._exit": 4, "SIGTERM": -signal.SIGTERM, "SIGKILL": -signal.SIGKILL}
    measured = measure(ENDS, *codes)
    assert (measured.code, measured.document["exit_code"]) == (128 + signal.SIGTERM, 128 + signal.SIGTERM)
    ended = [
        [int(word) for word in line.split()[1:]] for line in measured.said.splitlines() if line.startswith("ENDED")
    ]
    assert [code for _, code in ended] == list(codes.values())
    figures = {one["pid"]: (one["max_allocated_bytes"], one["device_bytes"]) for one in measured.processes}
    # What a killed process had is unknown but for the device.
    for (pid, _), allocated in zip(ended, [1 << 20, 1 << 20, 1 << 20, None], strict=True):
        assert figures.pop(pid) == (allocated, CONTEXT_BYTES + (2 << 20))
    assert not figures


def test_a_command_without_cuda_says_so_in_one_line(measure: Any) -> None:
    measured = measure("import torch; torch.ones(8); print('done')")
    assert (measured.code, measured.processes) == (0, [])
    assert measured.said == "done\nnooom: no process of the command used a GPU through torch\n"


def test_two_processes_on_one_gpu_add_up(measure: Any, cuda_python: str, work: Path, phantom_nooom: Any) -> None:
    (work / "first.py").write_text(
        "import pathlib, time, torch; kept = torch.ones(1 << 26, device='cuda'); pathlib.Path('ready').touch()\n"
        "while not pathlib.Path('done').exists(): time.sleep(0.05)\n"
    )
    (work / "second.py").write_text(
        "import pathlib, time, torch\n"
        "while not pathlib.Path('ready').exists(): time.sleep(0.05)\n"
        "kept = torch.ones(1 << 25, device='cuda'); free, total = torch.cuda.mem_get_info()\n"
        "print('USED', total - free, flush=True); pathlib.Path('done').touch()\n"
    )
    both = phantom_nooom(
        "measure", "--gpu", "a100-80gb", "--", "bash", "-c", f"{cuda_python} first.py & {cuda_python} second.py; wait"
    )
    assert both.returncode == 0, both.stderr
    (used,) = [int(line.split()[1]) for line in both.stdout.splitlines() if line.startswith("USED")]
    assert used == 2 * CONTEXT_BYTES + (256 << 20) + (128 << 20)
    assert "emulated on phantom a100-80gb" in both.stdout
    assert "python first.py" in both.stdout
    assert "python second.py" in both.stdout
    assert max(map(len, both.stdout.splitlines())) <= 80


def test_several_gpus_stand_beside_one_another_and_the_largest_above(measure: Any) -> None:
    program = "import torch\nkept = [torch.ones(1 << (20 + i), device=f'cuda:{i}') for i in range(2)]\n"
    measured = measure(program, options=("--gpus", 2))
    assert measured.document["gpu"]["count"] == 2
    assert [(one["index"], one["max_allocated_bytes"]) for one in measured.process["gpus"]] == [
        (0, 4 << 20),
        (1, 8 << 20),
    ]
    assert measured.process["max_allocated_bytes"] == 8 << 20
    hidden = measure(program.replace("range(2)", "range(1)"), options=("--gpus", 2), env={"CUDA_VISIBLE_DEVICES": "1"})
    assert [one["index"] for one in hidden.process["gpus"]] == [1]


def test_workers_of_multiprocessing_are_measured(measure: Any) -> None:
    measured = measure(
        "import multiprocessing, sys, torch\n"
        "def work(mib): kept.append(torch.ones(mib << 18, device='cuda'))\n"
        "kept = []\n"
        "if __name__ == '__main__':\n"
        "    for method, mib in (('fork', 3), ('spawn', 5)):\n"
        "        worker = multiprocessing.get_context(method).Process(target=work, args=(mib,))\n"
        "        worker.start(); worker.join(); assert worker.exitcode == 0\n"
    )
    assert measured.code == 0, measured.said
    assert [one["max_allocated_bytes"] for one in measured.processes] == [3 << 20, 5 << 20]


def test_the_users_own_modules_and_sitecustomize_are_what_they_were(measure: Any, work: Path, tmp_path: Path) -> None:
    (work / "profiler.py").write_text("mine = True\n")
    (work / "benchmarks").mkdir()
    (work / "benchmarks" / "__init__.py").write_text("mine = True\n")
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.customized = __file__\n")
    measured = measure(
        "import sys, os, sitecustomize, torch, profiler, benchmarks\n"
        "assert profiler.mine and benchmarks.mine\n"
        "assert customized == sitecustomize.__file__\n"
        "print('PATH', *sys.path[1:3], 'sitecustomize' in customized, not hasattr(torch.__loader__, '__dict__') or 'exec_module' not in vars(torch.__loader__))\n"
        "torch.ones(8, device='cuda')\n",
        env={"PYTHONPATH": str(own)},
    )
    assert measured.code == 0, measured.said
    (line,) = [line for line in measured.said.splitlines() if line.startswith("PATH")]
    assert line.split()[1] == str(own)
    assert line.endswith("True True")
    assert measured.process["max_allocated_bytes"] == 512


def test_a_sitecustomize_that_fails_fails_as_before(measure: Any, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('mine')\n")
    measured = measure(ONE_MIB, env={"PYTHONPATH": str(tmp_path)})
    assert "Error in sitecustomize" in measured.said
    assert "ValueError: mine" in measured.said
    assert measured.process["max_allocated_bytes"] == 1 << 20


def test_a_python_without_its_environment_still_shows_on_the_device(phantom_nooom: Any, cuda_python: str) -> None:
    done = phantom_nooom("measure", "--gpu", "a100-80gb", "--", cuda_python, "-I", "-c", ONE_MIB)
    assert done.returncode == 0, done.stderr
    assert "(left no report)" in done.stdout


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_a_snapshot_is_written_for_each_process(measure: Any, work: Path, several: bool) -> None:
    program = "import os, torch\n"
    if several:
        program += "child = os.fork()\nif child: assert os.waitpid(child, 0)[1] == 0\n"
    program += "kept = torch.ones(1 << 20, device='cuda')\n"
    measured = measure(program, options=("--snapshot", "history.pickle"))
    names = [f"history.pickle.{one['pid']}" for one in measured.processes] if several else ["history.pickle"]
    assert measured.document["snapshots"] == names
    assert sorted(path.name for path in work.glob("history*")) == sorted(names)
    for name in names:
        snapshot = pickle.loads((work / name).read_bytes())
        assert snapshot["segments"]
        (traced,) = [trace for trace in snapshot["device_traces"] if trace]
        (made,) = [entry for entry in traced if entry["action"] == "alloc"]
        assert "program.py" in {frame["filename"].rpartition("/")[2] for frame in made["frames"]}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--gpu", "a100-80gb"), 2, "no command to measure: nooom measure [options] -- python train.py"),
        (("--gpu", "a100-80gb", "--"), 2, "no command to measure"),
        (
            ("--gpu", "a100", "--", "true"),
            2,
            "--gpu 'a100' is unknown; did you mean a100-80gb or a100-40gb or a10-24gb?",
        ),
        (("--device", "phantom", "--", "true"), 2, "--device phantom plays a GPU: add --gpu NAME"),
        (("--device", "cuda", "--gpu", "a100-80gb", "--", "true"), 2, "--gpu names the GPU that a phantom plays"),
        (("--device", "cpu", "--", "true"), 2, "--device 'cpu' is unknown; did you mean cuda?"),
        (("--gpu-memory", "1GiB", "--", "true"), 2, "--gpu-memory gives a played GPU another capacity"),
        (("--gpus", "2", "--", "true"), 2, "--gpus counts a phantom's GPUs: add --gpu NAME"),
        (("--gpu", "a100-80gb", "--gpus", "17", "--", "true"), 2, "--gpus must lie between 1 and 16, not 17"),
        (("--gpu", "a100-80gb", "--snapshot", "no/such", "--", "true"), 2, "--snapshot no/such"),
        (("--gpu", "a100-80gb", "--", "no-such-command"), 127, "command not found: no-such-command"),
        (("--gpu", "a100-80gb", "--", "./config.json"), 126, "can't run ./config.json: Permission denied"),
    ],
)
def test_wrong_usage_is_one_line(phantom_nooom: Any, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = phantom_nooom("measure", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"nooom: {says}")
    assert done.stderr.count("\n") == 1


def test_without_a_gpu_cuda_can_not_be_measured(phantom_nooom: Any) -> None:
    done = phantom_nooom("measure", "--device", "cuda", "--", "true", env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 3
    assert done.stderr.startswith(
        "nooom: no GPU to measure on: CUDA_VISIBLE_DEVICES hides every GPU; a phantom plays one"
    )


def test_interrupt_passes_to_the_command_and_its_figures_are_kept(
    cuda_python: str, work: Path, environment: Mapping[str, str]
) -> None:
    (work / "program.py").write_text(ONE_MIB + "import pathlib, time; pathlib.Path('ready').touch(); time.sleep(60)")
    started = subprocess.Popen(
        [cuda_python, "-m", "nooom", "measure", "--gpu", "a100-80gb", "--json", "--", cuda_python, "program.py"],
        cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        # A test run that was started in the background may have been told to ignore ^C, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    for _ in range(600):
        if (work / "ready").exists():
            break
        time.sleep(0.1)
    started.send_signal(signal.SIGINT)
    out, said = started.communicate(timeout=60)
    assert started.returncode == 130
    assert f'"max_allocated_bytes": {1 << 20}' in out
    assert "KeyboardInterrupt" in said


def test_another_torch_than_the_phantoms_is_named(
    phantom_nooom: Any, cuda_python: str, work: Path, environment: Mapping[str, str]
) -> None:
    """Where the command's Python is not nooom's: here, one whose torch is a CPU build."""
    if sys.executable == cuda_python:
        pytest.skip("the only torch here is the CUDA build")
    done = phantom_nooom("measure", "--gpu", "a100-80gb", "--", sys.executable, "-c", "import torch")
    assert done.returncode == 0
    assert "is a build without CUDA: it finds no phantom GPU" in done.stderr


def test_flash_attention_in_cudnns_place_is_said(phantom_nooom: Any, cuda_python: str) -> None:
    done = phantom_nooom("measure", "--gpu", "h100-80gb", "--", cuda_python, "-c", ONE_MIB)
    assert "flash attention was played" in done.stdout
