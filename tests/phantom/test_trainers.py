"""Other people's training loops, unmodified, on a phantom: they end, and agree with our own workloads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nooom.benchmarks.journal import read
from nooom.profiler.measurement import phase_from_json

TRAINER = """
import json, sys, torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
config = AutoConfig.for_model(**json.load(open("config.json")))
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
if "lora" in sys.argv:
    from peft import LoraConfig, get_peft_model
    model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
rows = [{"input_ids": torch.randint(1, 8000, (128,)), "attention_mask": torch.ones(128, dtype=torch.long)} for _ in range(12)]
for row in rows:
    row["labels"] = row["input_ids"].clone()
arguments = TrainingArguments(
    output_dir="out", max_steps=3, per_device_train_batch_size=4, logging_strategy="no", save_strategy="no", report_to=[],
    disable_tqdm=True,
)
Trainer(model=model, args=arguments, train_dataset=rows).train()
print("PEAKS", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""

# Tables are given their fingerprints: there is nothing to cache.
TRL = """
import json, sys, torch, transformers, trl
from datasets import Dataset, disable_caching
from datasets.table import InMemoryTable
from tokenizers import Tokenizer, models, pre_tokenizers
disable_caching()
config = transformers.AutoConfig.for_model(**json.load(open("config.json")))
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
words = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(997))]
backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
)
def rows(name, length):
    texts = [" ".join(f"w{i}" for i in range(first, first + length)) for first in range(12)]
    return Dataset(InMemoryTable.from_pydict({name: texts}), fingerprint=name)
common = dict(output_dir="out", max_steps=2, per_device_train_batch_size=4, logging_strategy="no", save_strategy="no",
              report_to=[], disable_tqdm=True)
"""
SFT = """
arguments = trl.SFTConfig(max_length=128, **common)
trl.SFTTrainer(model=model, args=arguments, train_dataset=rows("text", 100), processing_class=tokenizer).train()
print("PEAKS", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""
GRPO = """
lengths = []
def reward(completions, **_):
    lengths.extend(len(completion.split()) for completion in completions)
    return [float(len(completion)) for completion in completions]
arguments = trl.GRPOConfig(num_generations=4, max_completion_length=24, **common)
trl.GRPOTrainer(
    model=model, reward_funcs=reward, args=arguments, train_dataset=rows("prompt", 20), processing_class=tokenizer
).train()
print("PEAKS", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
print("ROLLOUTS", len(lengths))
"""


def peaks(process: dict[str, Any]) -> list[int]:
    return [process["max_allocated_bytes"], process["max_reserved_bytes"]]


SUITE = """
[defaults]
model = "{model}"
batch = 4
seq = 128
[[case]]
workload = "sft"
[[case]]
workload = "lora"
lora_rank = 8
"""


@pytest.fixture(scope="module")
def ours(
    phantom_nooom_in: Any, small_config: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[int]]:
    """The peaks of our own cases: the largest of every phase, the first batch's included."""
    folder = tmp_path_factory.mktemp("ours")
    (folder / "config.json").write_text(json.dumps(small_config))
    (folder / "suite.toml").write_text(SUITE.format(model=folder))
    completed = phantom_nooom_in(folder, "run", "suite.toml", "--device", "phantom", "--gpu", "a100-80gb", "--json")
    assert completed.returncode == 0, completed.stderr
    found = {}
    for measurement in json.loads(completed.stdout)["measurements"]:
        assert measurement["status"] == "ok", measurement["error"]
        phases = [*measurement["phases"], *measurement["first"]["phases"]]
        found[measurement["case"]["workload"]] = [
            max(phase[name] for phase in phases) for name in ("peak_allocated_bytes", "peak_reserved_bytes")
        ]
    return found


@pytest.mark.parametrize(("arguments", "workload"), [((), "sft"), (("lora",), "lora")], ids=["full", "lora"])
def test_the_hf_trainer_takes_what_our_own_case_takes(
    measure: Any, ours: dict[str, list[int]], arguments: tuple[str, ...], workload: str
) -> None:
    measured = measure(TRAINER, *arguments)
    assert measured.code == 0, measured.said
    assert peaks(measured.process) == measured.printed("PEAKS")
    theirs, own = peaks(measured.process), ours[workload]
    assert own[0] == pytest.approx(theirs[0], rel=0.005), (own, theirs)
    assert own[1] == pytest.approx(theirs[1], rel=0.02), (own, theirs)  # two segments of 2 MiB less or more


def test_accelerate_launch_is_measured_through_its_launcher(phantom_nooom: Any, cuda_python: str, work: Path) -> None:
    (work / "program.py").write_text(TRAINER)
    launch = (cuda_python, "-m", "accelerate.commands.launch", "--num_processes", 1, "program.py")
    done = phantom_nooom("measure", "--gpu", "a100-80gb", "--json", "--", *launch)
    assert done.returncode == 0, done.stderr
    (process,) = json.loads(done.stdout)["processes"]
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("PEAKS")]
    assert peaks(process) == [int(number) for number in line.split()[1:]]


def test_trls_sft_trainer_ends(measure: Any, with_trl: str) -> None:
    measured = measure(TRL + SFT)
    assert measured.code == 0, measured.said
    assert peaks(measured.process) == measured.printed("PEAKS")


def test_trls_grpo_trainer_ends(measure: Any, with_trl: str) -> None:
    measured = measure(TRL + GRPO)
    assert measured.code == 0, measured.said
    assert peaks(measured.process) == measured.printed("PEAKS")
    assert measured.printed("ROLLOUTS") == [4 * 2]
    assert measured.process["invented_answers"]


@pytest.mark.parametrize("arguments", [(), ("lora",)], ids=["full", "lora"])
def test_the_callbacks_peak_is_that_of_a_training_without_it(
    measure: Any, work: Path, arguments: tuple[str, ...]
) -> None:
    without = measure(TRAINER, *arguments)
    assert without.code == 0, without.said
    program = TRAINER.replace("train_dataset=rows)", "train_dataset=rows, callbacks=[callback])").replace(
        "Trainer(model", "callback = nooom.TrainerCallback(out='results', name='theirs')\nTrainer(model"
    )
    program = program.replace("import json, sys, torch", "import json, sys, torch, nooom")
    program = program.replace("Trainer(model=", "with nooom.measure(name='around', out='results'): Trainer(model=")
    hooked = measure(program, *arguments)
    assert hooked.code == 0, hooked.said
    assert peaks(hooked.process) == without.printed("PEAKS")
    theirs, around = read(work / "results")
    assert (theirs.source, theirs.device, theirs.case["name"]) == ("emulated", "phantom", "theirs")
    assert theirs.fingerprint["no_case"].startswith("a model without a name")
    assert theirs.gpu == around.gpu
    assert theirs.gpu is not None
    assert theirs.gpu["total_bytes"] > 79 << 30
    assert theirs.first is not None
    everything = [*theirs.phases, *map(phase_from_json, theirs.first["phases"])]
    own = [max(getattr(phase, f"peak_{kind}_bytes") for phase in everything) for kind in ("allocated", "reserved")]
    assert own == without.printed("PEAKS")
    # The callback has reset the allocator's peaks again and again; the block around it lost none.
    assert (around.source, around.peak_allocated_bytes) == ("emulated", own[0])
    assert {phase.name for phase in theirs.phases} == {"forward", "backward", "optimizer"}
