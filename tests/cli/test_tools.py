"""Lines of docs/tools.md as jobs of a running service, with a pause in the middle.

Each program prints "began NAME" and waits for SIGTERM. Its next start loads through the tool
what was saved, and prints "went on from NAME".
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from waiting import eventually

if TYPE_CHECKING:
    from in_process_service import RunningService

PAGE = (Path(__file__).parents[2] / "docs/tools.md").read_text(encoding="utf-8")
BLOCK = r"^```(?:python)?\n(.*?)```$"
PREAMBLE, SUBMIT = re.findall(BLOCK, PAGE.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
LINES = dict(re.findall(rf"^### ([^\n]+)\n{BLOCK[1:]}", PAGE, re.MULTILINE | re.DOTALL))
"""The block below each tool's heading."""

PROGRAM_HEAD = f"""
import signal, time
from pathlib import Path
{PREAMBLE}
me = os.environ.get("RUNAI_ARRAY_INDEX")
resumed = os.environ["RUNAI_RESUMED"] == "1"

def wait_for_pause(save=lambda: None, me=me):
    def stop(*_):
        save()
        sys.exit(143)

    signal.signal(signal.SIGTERM, stop)
    print("began", me, flush=True)
    time.sleep(600)

def went_on(saved):
    print("went on from", saved, flush=True)
"""

SAVING_PROGRAM = """
saved = Path(folder, "saved")
went_on(saved.read_text()) if resumed else wait_for_pause(lambda: saved.write_text(me))
"""

HYDRA_PROGRAM = """
import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(version_base=None)
def main(config):
    saved = Path(HydraConfig.get().runtime.output_dir, "saved")
    seed = str(config.seed)
    went_on(saved.read_text()) if resumed else wait_for_pause(lambda: saved.write_text(seed), seed)

main()
"""

TORCHRUN_PROGRAM = """
import torch.distributed as dist

dist.init_process_group("gloo")
me = f"rank {dist.get_rank()} of {dist.get_world_size()}"
saved = Path(folder, f"saved{dist.get_rank()}")
dist.barrier()
went_on(saved.read_text()) if resumed else wait_for_pause(lambda: saved.write_text(me), me)
dist.destroy_process_group()
"""

ACCELERATE_PROGRAM = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
me = f"rank {accelerator.process_index} of {accelerator.num_processes}"
model = accelerator.prepare(torch.nn.Linear(1, 1, bias=False))
(weight,) = model.parameters()
if resumed:
    accelerator.load_state(f"{folder}/state")
    assert weight.item() == 0.5
    went_on(me)
else:
    torch.nn.init.constant_(weight, 0.5)
    accelerator.wait_for_everyone()
    wait_for_pause(lambda: accelerator.save_state(f"{folder}/state"), me)
accelerator.end_training()
"""

TEE_PROGRAM = """
log = Path(folder, "train.log")
went_on(log.read_text().removeprefix("began ")[0]) if resumed else wait_for_pause()
"""

LIGHTNING_PROGRAM = """
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.first = True

    def training_step(self, batch, index):
        if self.first:
            assert bool(self.global_step) == resumed
            me = f"rank {self.global_rank} of {self.trainer.world_size}"
            print("went on from" if resumed else "began", me, flush=True)
        while not (self.first or resumed or self.trainer.received_sigterm):
            time.sleep(0.1)
        self.first = False
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

model, data = Model(), torch.utils.data.DataLoader(torch.rand(9, 1))
LINE
"""

OPTUNA_PROGRAM = """
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import MaxTrialsCallback
from optuna.trial import TrialState

finished = []

def objective(trial):
    trial.set_user_attr("job", me)
    if finished and not resumed:
        wait_for_pause()
    finished.append(trial.number)
    return trial.suggest_float("x", 0, 1)

LINE
complete = study.get_trials(states=(TrialState.COMPLETE,))
assert len(study.trials) > len(complete) >= 4
jobs = {trial.user_attrs["job"] for trial in study.trials}
assert jobs == ({me} if Path(folder, "study.log").exists() else {"0", "1"})
went_on(me)
"""

JOBLIB_PROGRAM = """
import joblib

LINE
@memory.cache
def process(number):
    return os.getpid()

processes = {process(number) for number in range(3)}
assert (os.getpid() in processes) != resumed
went_on(me) if resumed else wait_for_pause()
"""

SUBMITIT_PROGRAM = """
import submitit

LINE
def task():
    saved = Path(folder, "saved")
    if not resumed:
        wait_for_pause(lambda: saved.write_text(me))
    return saved.read_text()

job = executor.submit(task)
if not resumed:
    while not (job.paths.stdout.exists() and "began" in job.paths.stdout.read_text()):
        time.sleep(0.1)
    print("began", me, flush=True)
went_on(job.result())
"""

TENSORBOARD_PROGRAM = """
sys.modules["tensorflow"] = None  # TensorBoard would import it: seconds
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

step = 2 if resumed else 0
LINE
for number in range(step, 4):
    writer.add_scalar("loss", 10 * step + number, number)
writer.flush()
if resumed:
    events = EventAccumulator(folder).Reload().Scalars("loss")
    seen = [(event.step, event.value) for event in events]
    assert seen == [(0, 0), (1, 1), (2, 22), (3, 23)], seen
went_on(me) if resumed else wait_for_pause()
"""

SAME_RUN_PROGRAM = """
saved = Path(folder, "run")
assert not resumed or saved.read_text() == number
saved.write_text(number)
went_on(me) if resumed else wait_for_pause()
"""

WANDB_PROGRAM = f"""
import wandb

os.environ["WANDB_MODE"] = "offline"
LINE
number = run.id
{SAME_RUN_PROGRAM}"""

MLFLOW_PROGRAM = f"""
import mlflow

mlflow.set_tracking_uri(f"sqlite:///{{folder}}/mlflow.db")
LINE
number = run.info.run_id
{SAME_RUN_PROGRAM}"""

RAY_PROGRAM = """
import ray

LINE
@ray.remote
def number():
    return os.environ["RUNAI_ARRAY_INDEX"]

saved = Path(folder, "saved")
mine = ray.get(number.remote())
went_on(saved.read_text()) if resumed else wait_for_pause(lambda: saved.write_text(mine), mine)
"""

COMMIT_COMMAND = "git -c user.name=bob -c user.email=bob@lab.example commit -qm begin"
ARRAY_JOBS = {"0": "sweep-0", "1": "sweep-1"}
GANG_JOBS = {"rank 0 of 2": "gang", "rank 1 of 2": "gang"}
TOOLS, LARGE, TORCH = pytest.mark.tools, pytest.mark.large_tools, pytest.mark.torch


class ToolProgram(NamedTuple):
    """A program, in which LINE stands for the page's lines if they are Python."""

    program: str
    line: str
    job_by_process: dict[str, str] = ARRAY_JOBS
    """The name that each process prints, with its job."""


def tool_case(tool: str, program: str, *replacement: str, marks: Any = (), **fields: Any) -> Any:
    """Return the parameters of a tool's test; `replacement`: two texts, old and new."""
    line = LINES[tool].replace(*replacement) if replacement else LINES[tool]
    command, python = (line, "") if line.startswith("runai") else (SUBMIT, line)
    if fields.get("job_by_process") is GANG_JOBS:
        command = command.replace("sweep", "gang").replace("--array", "--workers")
    assert ("LINE" in program) == bool(python)
    if replacement:
        assert line != LINES[tool]
    tool_program = ToolProgram(PROGRAM_HEAD + program.replace("LINE\n", python), command, **fields)
    return pytest.param(tool_program, id=" ".join((tool, *replacement[1:])), marks=marks)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    from in_process_service import running_service

    data = tmp_path_factory.mktemp("tools") / "data"
    vision = ProjectSpec("vision", quota=MilliGpu(4000), members=("bob",))
    with running_service(data, [Actor("bob")], [vision], gpus=4) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that make and DVC know."""
    (tmp_path / "Makefile").write_text(".PHONY: train\ntrain:\n\tpython train.py\n")
    (tmp_path / "dvc.yaml").write_text(
        "stages: {train: {cmd: python train.py, deps: [train.py]}}\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    "tool_program",
    [
        tool_case("Hydra", HYDRA_PROGRAM, marks=TOOLS),
        tool_case("torchrun", TORCHRUN_PROGRAM, job_by_process=GANG_JOBS, marks=TORCH),
        tool_case("Accelerate", ACCELERATE_PROGRAM, job_by_process=GANG_JOBS, marks=TOOLS),
        tool_case("tee", TEE_PROGRAM),
        tool_case("timeout", SAVING_PROGRAM),
        tool_case("uv run", SAVING_PROGRAM, marks=TOOLS),
        tool_case("make", SAVING_PROGRAM),
        tool_case("DVC", SAVING_PROGRAM, marks=LARGE),
        tool_case("Lightning", LIGHTNING_PROGRAM, job_by_process=GANG_JOBS, marks=TOOLS),
        tool_case("Optuna", OPTUNA_PROGRAM, marks=TOOLS),
        tool_case("Optuna", OPTUNA_PROGRAM, 'f"{folder}/study.log"', '"study.log"', marks=TOOLS),
        tool_case("joblib", JOBLIB_PROGRAM, marks=TOOLS),
        tool_case("submitit", SUBMITIT_PROGRAM, marks=TOOLS),
        tool_case("TensorBoard", TENSORBOARD_PROGRAM, marks=TOOLS),
        tool_case("W&B", WANDB_PROGRAM, marks=LARGE),
        tool_case("MLflow", MLFLOW_PROGRAM, marks=LARGE),
        tool_case("Ray", RAY_PROGRAM, marks=LARGE),
    ],
)
def test_training_tool_resumes_each_jobs_saved_work_after_a_pause(
    tool_program: ToolProgram, bob: Any, folder: Path
):
    (folder / "train.py").write_text(tool_program.program)
    if "dvc" in tool_program.line:
        for command in ("git init -q", "dvc init -q", "git add .", COMMIT_COMMAND):
            subprocess.run(command.split(), cwd=folder, check=True)
    workload_name = shlex.split(tool_program.line)[2]
    one_line_each = dict.fromkeys(tool_program.job_by_process, 1)

    def log_lines(job: str) -> list[str]:
        lines = bob("logs", job).stdout.splitlines()
        return [re.sub(r"^\[\d\] ", "", line) for line in lines]

    def count_lines(word: str) -> dict[str, int]:
        pairs = tool_program.job_by_process.items()
        return {name: log_lines(job).count(f"{word} {name}") for name, job in pairs}

    def states() -> set[str]:
        workloads = json.loads(bob("list", "--elements", "-o", "json").stdout)
        return {
            workload["state"]
            for workload in workloads
            if workload["name"].startswith(workload_name)
        }

    try:
        assert bob(*shlex.split(tool_program.line)[1:]).exit_code == 0
        # `wait` takes no CPU from the jobs meanwhile.
        eventually(
            lambda: (
                bob("wait", workload_name, "--timeout", "1s").exit_code != 124
                or all(count_lines("began").values())
            ),
            what="all jobs began or ended",
        )
        assert count_lines("began") == one_line_each
        bob("suspend", workload_name)
        eventually(lambda: not states() & {"running", "stopping"}, what="the jobs have stopped")
        assert states() == {"suspended"}
        bob("resume", workload_name)
        code = bob("wait", workload_name).exit_code

        assert code == 0
        assert count_lines("went on from") == one_line_each
    except AssertionError:
        for job in {*tool_program.job_by_process.values()}:
            print(*log_lines(job), sep="\n")
        raise
    finally:
        bob("delete", workload_name)
        eventually(lambda: not states(), what="the jobs are deleted")
