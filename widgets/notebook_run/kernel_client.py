"""Execution of a run's cells in a kernel, by nbclient."""

import asyncio
import logging
import signal
import time
from typing import Any, Final

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbclient.util import ensure_async

from runai.hub_service.client.notebook_program import language_of, tags_of
from runai.hub_service.wire.errors import InvalidRequest
from runai.widgets.notebook_run.cell_text import MAX_TEXT_BYTES, cut_text, overwritten
from runai.widgets.notebook_run.run import INJECTED, NotebookRun, is_numbered

SAVE_EVERY_S: Final = 2.0  # the copy is at most 3 s old: one for the writing
STARTUP_S: Final = 600  # a kernel on a busy machine, with its libraries on a slow disk
_NATIVE_KERNEL: Final = "python3"


def kernel_of(notebook: dict[str, Any]) -> tuple[str, str]:
    """Return the kernel for a notebook, and a remark if it is another than the notebook's.

    Raises:
        InvalidRequest: this Python has none for it.
    """
    requested = notebook["metadata"].get("kernelspec", {}).get("name") or _NATIVE_KERNEL
    known = KernelSpecManager().find_kernel_specs()
    if requested in known:
        return requested, ""
    if language_of(notebook) == "python" and _NATIVE_KERNEL in known:
        return _NATIVE_KERNEL, f", since the notebook's own ({requested}) is not here"
    raise InvalidRequest(
        f"The job's Python has no kernel {requested}.",
        hint=f"It has: {', '.join(sorted(known)) or 'none; install ipykernel'}.",
    )


class JobClient(NotebookClient):
    """A kernel that runs a notebook's cells, and stops at a signal."""

    def __init__(self, run: NotebookRun, kernel: str) -> None:
        """Take the run; its content changes in place."""
        notebook = run.notebook = nbformat.from_dict(run.notebook)  # type: ignore[no-untyped-call]
        super().__init__(
            notebook,
            kernel_name=kernel,
            startup_timeout=STARTUP_S,
            resources={"metadata": {"path": str(run.path.parent)}},
        )
        self.log.setLevel(logging.CRITICAL)  # faults become a sentence
        self.run = run
        self.stopped_by = 0
        """The signal that ends the run; 0: none."""
        self._cut_note = "… the text before is not kept here: `runai logs` has it."
        self._is_in_cell = self._is_busy = self._is_changed = self._has_displays = False
        self._text_bytes = 0
        self._task: asyncio.Task[Any] | None = None
        self._signalling: asyncio.Future[Any] | None = None

    async def execute_run(self) -> int:
        """Run the cells and return the exit code: 0, 1, or 128 and the signal's number."""
        self._task = asyncio.current_task()
        saving = asyncio.create_task(self._save_changes())
        code: int | None = None
        try:
            async with self.async_setup_kernel():
                code = self._finish(await self._run_cells())
        except asyncio.CancelledError:
            if not self.stopped_by:
                raise
        except (OSError, RuntimeError) as error:
            if code is None:
                begun = self.run.position
                what = "ended" if begun else f"{self.kernel_name} did not start"
                code = self._finish(f"the kernel {what}: {error}")
        finally:
            saving.cancel()
        return self._finish("") if code is None else code

    def _finish(self, fault: str) -> int:
        """Write the copy for the last time, print how the run ended, and return the exit code."""
        run = self.run
        where = run.position or "the start"
        if self.stopped_by:
            run.end("paused")
            run.say(
                f"stopped in {where}, {run.copy.path.name} is saved. Started again, it runs from"
                " its first cell, unless the notebook loads what it saved itself."
            )
            return 128 + self.stopped_by
        run.end("failed" if fault else "succeeded")
        if fault:
            run.say(f"{where} failed: {fault}")
        if run.write_fault:
            run.say(f"{run.copy.path.name} is not whole: {run.write_fault}.")
        return 1 if fault or run.write_fault else 0

    async def _run_cells(self) -> str:
        """Run the cells until one fails or a signal comes; return why one failed, else ""."""
        assert self.kc is not None
        info = await self.async_wait_for_reply(await ensure_async(self.kc.kernel_info()))
        if info is not None and "language_info" in info["content"]:
            self.nb.metadata["language_info"] = info["content"]["language_info"]
        finished = 0
        for index, cell in enumerate(self.nb.cells):
            is_own, is_set = is_numbered(cell), INJECTED in tags_of(cell)
            if is_own:
                self.run.enter(finished)
                self.run.say(self.run.position)
            self._is_in_cell, self._is_busy = True, False
            self._text_bytes, self._has_displays = 0, False
            try:
                await self.async_execute_cell(cell, index, store_history=not is_set)
            except CellExecutionError as error:
                return f"{error.ename}: {error.evalue}"
            except DeadKernelError:
                return "its kernel died; it may have used too much memory"
            finally:
                self._is_in_cell = False
            if is_set:  # so that cell 3 of the notebook is [3] in its copy
                cell["execution_count"] = None
            if self.stopped_by:
                return ""
            finished += is_own
            self.set_widgets_metadata()
            self.run.save()
        self.run.enter(finished)
        return ""

    async def _save_changes(self) -> None:
        """Write the copy while a cell runs."""
        pause_s = SAVE_EVERY_S
        while True:
            await asyncio.sleep(pause_s)
            if self._is_changed:
                self._is_changed = False
                begin = time.monotonic()
                self.set_widgets_metadata()
                self.run.save()
                # A large copy, or one on a slow disk, holds up the kernel's messages.
                pause_s = max(SAVE_EVERY_S, 10 * (time.monotonic() - begin))

    # -- signals ---------------------------------------------------------------------------------

    async def async_start_new_kernel(self, **kwargs: Any) -> None:  # noqa: ANN401 - nbclient's
        """Start the kernel, after replacing nbclient's handlers: they would end us with code 1."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        assert self.km is not None
        if self.km.ipykernel:  # its warnings are a server's; they are no output of the notebook
            self.extra_arguments = ["--log-level=ERROR"]
        await super().async_start_new_kernel(**kwargs)

    def _stop(self, number: int) -> None:
        """Interrupt the cell once, so that it can save; a second signal ends the kernel."""
        is_second, self.stopped_by = bool(self.stopped_by), number
        self.run.unnoted_end = "paused"
        self.run.save()
        if not self._is_in_cell:
            if self._task is not None:
                self._task.cancel()
        elif self._is_busy or is_second:
            self._signal(at_once=is_second)

    def _signal(self, *, at_once: bool = False) -> None:
        assert self.km is not None
        call = self.km.shutdown_kernel(now=True) if at_once else self.km.interrupt_kernel()
        self._signalling = asyncio.ensure_future(ensure_async(call))

    # -- messages --------------------------------------------------------------------------------

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:  # noqa: ANN401
        """Handle one message of the kernel."""
        self._is_changed = True
        if msg["msg_type"] == "execute_input":
            self._is_busy = True  # before, the kernel ignores an interrupt
            if self.stopped_by:
                self._signal()
        return super().process_message(msg, cell, cell_index)

    def output(
        self, outs: list[Any], msg: dict[str, Any], display_id: str | None, cell_index: int
    ) -> Any:  # noqa: ANN401
        """Add an output; printed text joins the text before it, and goes to the log."""
        self._has_displays = self._has_displays or bool(display_id)
        is_text = msg["msg_type"] == "stream"
        if is_text:
            content = msg["content"]
            self.run.log(content["text"], is_error=content["name"] == "stderr")
        out = super().output(outs, msg, display_id, cell_index)
        if out is None or not is_text:
            return out
        self._text_bytes += len(out["text"].encode(errors="replace"))
        before = outs[-2] if len(outs) > 1 else {}
        if before.get("output_type") == "stream" and before["name"] == out["name"]:
            outs.pop()
            before["text"] = overwritten(before["text"], out["text"])
        else:
            out["text"] = overwritten("", out["text"])
        if self._text_bytes > MAX_TEXT_BYTES:
            self._text_bytes = cut_text(outs, self._cut_note, in_place=self._has_displays)
        return outs[-1]
