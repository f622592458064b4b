"""Actions on a workload that a page asks for: a fixed list of verbs, each a call of the API."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from runai.hub_service.client import calls
from runai.hub_service.wire.schemas import ScaleRequest, WorkloadDetail
from runai.hub_service.wire.validation import checked

_VERBS: Final[Mapping[str, Callable[[calls.Named], calls.Call[Any]]]] = {
    "describe": calls.workload,
    "suspend": calls.suspend,
    "resume": calls.resume,
    "keep": calls.keep,
    "release": calls.release,
    "regain": calls.regain,
    "delete": calls.delete,
}


def action_call(content: Mapping[str, Any]) -> calls.Call[Any] | None:
    """Return the call of a page's message, `{verb, workload, uid}`; None: it is no action.

    Raises:
        InvalidRequest: its workload is no id, or the number of workers is out of range.
    """
    match content:
        case {"verb": "scale", "workload": str(name), "workers": int(workers)}:
            scale = checked(ScaleRequest, {"workers": workers})
            return calls.scale(_seen(name, content), scale)
        case {"verb": str(verb), "workload": str(name)} if verb in _VERBS:
            return _VERBS[verb](_seen(name, content))
    return None


def action_answer(
    content: Mapping[str, Any], *, result: object = None, error: str = ""
) -> dict[str, Any]:
    """Return the answer to a page: an error, or nothing; of a description the facts."""
    answer = {
        "workload": content.get("workload", ""),
        "uid": content.get("uid", ""),
        "error": error,
    }
    if content.get("verb") == "describe" and isinstance(result, WorkloadDetail):
        answer["facts"] = [fact.model_dump(mode="json") for fact in result.facts]
    return answer


def _seen(workload: str, content: Mapping[str, Any]) -> calls.WorkloadIdentity:
    return calls.WorkloadIdentity(workload, str(content.get("uid", "")))
