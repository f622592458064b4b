"""A fake `nvidia-cuda-mps-control`: the same commands, no GPU.

With -f it is the daemon (socket `control`, quits at "quit" or at the end of its input), else it
sends one line to the daemon. Refuses to start beside another daemon's socket, as NVIDIA's does.
FAKE_MPS=broken ends at once, deaf never makes its socket, mute never answers.
"""

import os
import socket
import sys
import threading
from pathlib import Path

CONTROL = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]) / "control"
MODE = os.environ.get("FAKE_MPS", "")
LIMITS: dict[str, str] = {}


def answer(words: list[str]) -> str:
    if words[0] == "set_default_device_pinned_mem_limit":
        LIMITS[words[1]] = words[2]
        return ""
    if words[0] == "get_default_device_pinned_mem_limit":
        return LIMITS.get(words[1], "unlimited")
    if words[0] == "get_server_list":
        return os.environ["CUDA_VISIBLE_DEVICES"]
    return f"! unknown command {words[0]}"


def serve(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            words = connection.recv(4096).decode().split()
            if MODE != "mute":
                connection.sendall(answer(words).encode() or b"\n")


def daemon() -> int:
    if MODE == "broken":
        print("Cannot find MPS control daemon process", flush=True)
        return 1
    if CONTROL.exists():
        print("An instance of this daemon is already running", flush=True)
        return 1
    if MODE != "deaf":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(CONTROL))
        listener.listen()
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
    for line in sys.stdin:
        if line.strip() == "quit":
            break
    CONTROL.unlink(missing_ok=True)
    return 0


def client() -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(CONTROL))
        connection.sendall(sys.stdin.readline().encode())
        if MODE == "mute":
            threading.Event().wait()
        reply = connection.recv(4096).decode().strip()
    print(reply.removeprefix("! "))
    return 1 if reply.startswith("! ") else 0


if __name__ == "__main__":
    sys.exit(daemon() if sys.argv[1:] == ["-f"] else client())
