"""Client of the kubelet's pod-resources API, which lists each pod's GPUs, over the node's socket.

Uses one gRPC call (`v1.PodResourcesLister/List`) and two fields of each of its four messages. The
messages are decoded here by hand: generated code and the protobuf library would be larger. Message
definitions: k8s.io/kubelet, pkg/apis/podresources/v1/api.proto.
"""

from collections.abc import Iterator

import grpc

GPU_RESOURCE = "nvidia.com/gpu"
LIST = "/v1.PodResourcesLister/List"
ANSWERED_WITHIN_S = 5.0
LONGEST_NUMBER = 10
"""Bytes of a 64-bit varint at most."""
MAX_RECONNECT_MS = 1000
"""Bound of the reconnect interval; gRPC's default backoff grows to two minutes."""


class PodResources:
    """Client of this node's kubelet."""

    def __init__(self, socket: str) -> None:
        """Use a socket such as /var/lib/kubelet/pod-resources/kubelet.sock; connect on demand."""
        channel_options = [("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_MS)]
        self._channel = grpc.insecure_channel(f"unix://{socket}", options=channel_options)
        self._list = self._channel.unary_unary(LIST)

    def holders(self) -> dict[str, list[str]]:
        """Return the GPU UUIDs of each pod with GPUs, by `namespace/name`.

        Raises:
            OSError: the kubelet does not answer, or its answer cannot be decoded.
        """
        try:
            answer: bytes = self._list(b"", timeout=ANSWERED_WITHIN_S)
        except grpc.RpcError as error:
            raise OSError(f"the kubelet does not say who has which devices: {error}") from error
        return read_holders(answer)

    def close(self) -> None:
        """Close the connection; repeated calls do nothing."""
        self._channel.close()


def read_holders(answer: bytes) -> dict[str, list[str]]:
    """Decode a ListPodResourcesResponse to the GPU UUIDs of each pod, by `namespace/name`.

    Raises:
        OSError: the bytes are not a valid message.
    """
    holders: dict[str, list[str]] = {}
    try:
        for pod in _fields(answer, 1):
            namespace, name = _text(pod, 2), _text(pod, 1)
            devices = [
                uuid.decode()
                for container in _fields(pod, 3)
                for device in _fields(container, 2)
                if _text(device, 1) == GPU_RESOURCE
                for uuid in _fields(device, 2)
            ]
            if devices:
                holders.setdefault(f"{namespace}/{name}", []).extend(devices)
    except (IndexError, UnicodeDecodeError, ValueError) as error:
        raise OSError(f"the kubelet's answer is not understood: {error}") from error
    return holders


def _text(message: bytes, number: int) -> str:
    return b"".join(_fields(message, number)).decode()


def _fields(message: bytes, number: int) -> Iterator[bytes]:
    """Yield each value of a length-delimited field of a protobuf message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:  # varint
                _number, at = _varint(message, at)
            case 1:  # eight bytes
                at += 8
            case 2:  # length-delimited
                length, at = _varint(message, at)
                if at + length > len(message):
                    raise ValueError("it ends in the middle of a field")
                if key >> 3 == number:
                    yield message[at : at + length]
                at += length
            case 5:  # four bytes
                at += 4
            case kind:
                raise ValueError(f"it has a field of the unknown kind {kind}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Decode the varint at an offset; return its value and the offset after it."""
    number = 0
    for place in range(LONGEST_NUMBER):
        byte = message[at + place]
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError("it has a number without an end")
