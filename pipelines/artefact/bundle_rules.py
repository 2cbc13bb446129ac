"""What a bundle may hold, as bundle_rules.json says it: the node's reader (scheduler/learn/src/rules.rs) goes by the same file.

The functions here mirror those there, in the same order, so that both refuse the same manifest for the same kind of reason;
tests/vectors/bundles.jsonl holds both to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from models import features, relative
from pipelines.io import canonical_json

Json = Any


class Refused(ValueError):
    """A manifest that cannot be used.

    Attributes:
        kind: one of the rules' kinds.
        field: path of the field at fault.
    """

    def __init__(self, kind: str, field: str, problem: str) -> None:
        super().__init__(f"field {field}: {problem}")
        self.kind = kind
        self.field = field


@lru_cache(maxsize=1)
def rules() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((Path(__file__).parent / "bundle_rules.json").read_bytes())
    loaded["inputs"] += [_of_relative(i) for i in relative.table().values()]
    return loaded


def _of_relative(known: relative.Relative) -> dict[str, Any]:
    """The rule of an input that is computed of others: what they need, it needs."""
    rule: dict[str, Any] = {"name": known.name, "of": ["b"] if known.expects else ["a", "b"]}
    for need, feature_set, ways in (("pmu", "no-pmu", 1), ("ways", "full", 0)):
        if not features.candidates([known.name], feature_set, ways):
            return rule | {"needs": need}
    return rule


def limit(name: str) -> Any:
    return rules()["limits"][name]


# ---------------------------------------------------------------- one byte form


def parse(data: bytes) -> Json:
    """Read JSON that must be in its one form (docs/bundle-format.md).

    Raises:
        Refused: kind `json`.
    """
    depth = limit("json_depth")
    if (at := _too_deep(data, depth)) is not None:
        raise Refused("json", "form", f"is nested more than {depth} deep at byte {at}")
    try:
        value = json.loads(data.decode())
        # half of a surrogate pair has no bytes
        json.dumps(value, ensure_ascii=False).encode()
        form = canonical_json(value)
    except (ValueError, RecursionError) as error:
        raise Refused("json", "form", f"is no JSON ({str(error)[:120]})") from None
    if form != data or not _fits(value):
        at = next((n for n, (a, b) in enumerate(zip(data, form, strict=False)) if a != b), min(len(data), len(form)))
        what = "is not in its one form (keys sorted, none twice, two spaces, ASCII, a final newline)"
        raise Refused("json", "form", f"{what} at byte {at}")
    return value


# What a bracket's depth hangs on: a string, closed or not, or one bracket.
_MARK = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


def _too_deep(data: bytes, most: int) -> int | None:
    """Where brackets outside of strings are nested deeper than `most`."""
    depth = 0
    for mark in _MARK.finditer(data):
        if mark[0] in (b"[", b"{"):
            depth += 1
        elif mark[0] in (b"]", b"}"):
            depth = max(0, depth - 1)
        if depth > most:
            return mark.start()
    return None


def _fits(value: Json) -> bool:
    """Whether whole numbers are of 64 bits."""
    if isinstance(value, dict):
        return all(map(_fits, value.values()))
    if isinstance(value, list):
        return all(map(_fits, value))
    return not isinstance(value, int) or -(2**63) <= value < 2**64


# ---------------------------------------------------------------- single fields


def check(value: Json) -> None:
    """Whether a manifest's fields are there, known, of their types and in their ranges.

    Raises:
        Refused: kind `version` or `field`.
    """
    version = _version(value)
    _object("manifest", value, "", version)


def _version(value: Json) -> int:
    for name in ("format", "format_version"):
        rule = rules()["objects"]["manifest"][name]
        found = value.get(name) if isinstance(value, dict) else None
        try:
            _field(rule, found, name, 0)
        except Refused:
            most = f", want 1 to {rule['most']}" if "most" in rule else ""
            raise Refused("version", name, f"is {_said(found)}: this version does not know it{most}") from None
    version: int = value["format_version"]
    return version


def _object(name: str, value: Json, at: str, version: int) -> None:
    fields = rules()["objects"][name]
    if not isinstance(value, dict):
        _wrong(at, value, "an object")
    for key in value:
        if key not in fields or fields[key].get("since", 0) > version:
            raise Refused("field", _below(at, key), f"is unknown in version {version}")
    for key, field in sorted(fields.items()):
        if key in value:
            _field(field, value[key], _below(at, key), version)
        elif not field.get("optional") and field.get("since", 0) <= version:
            raise Refused("field", _below(at, key), "is missing")


def _field(field: Mapping[str, Any], value: Json, at: str, version: int) -> None:
    if field.get("null") and value is None:
        return
    match field["type"]:
        case "null" if value is not None:
            _wrong(at, value, "null")
        case "boolean" if not isinstance(value, bool):
            _wrong(at, value, "true or false")
        case "text" if not (isinstance(value, str) and value in field["one_of"]):
            _wrong(at, value, " or ".join(field["one_of"]))
        case "label" if not is_label(value):
            _wrong(at, value, f"1 to {rules()['label']['most']} characters, none of control")
        case "hex" if not _is_hex(value, field["bytes"]):
            _wrong(at, value, f"{2 * field['bytes']} digits of lower-case hex")
        case "integer":
            if not isinstance(value, int) or isinstance(value, bool):
                _wrong(at, value, "a whole number, without a point")
            _in_range(field, float(value), at, value)
        case "number":
            if not isinstance(value, float):
                _wrong(at, value, "a number, with a point (36.0)")
            _in_range(field, value, at, value)
        case "layers":
            _layers(value, at)
        case "object":
            _object(field["of"], value, at, version)
        case "list":
            if not isinstance(value, list):
                _wrong(at, value, "a list")
            _in_range(field, float(len(value)), f"{at}: length", len(value))
            for n, item in enumerate(value):
                _field(field["of"], item, f"{at}[{n}]", version)
        case "map":
            if not isinstance(value, dict):
                _wrong(at, value, "an object")
            _in_range(field, float(len(value)), f"{at}: length", len(value))
            for key, item in value.items():
                if field.get("keys") == "label" and not is_label(key):
                    most = rules()["label"]["most"]
                    raise Refused("field", _below(at, key), f"is no name of 1 to {most} characters, none of control")
                _field(field["of"], item, _below(at, key), version)


def _layers(value: Json, at: str) -> None:
    """`[[out, in], ...]`."""
    most, width = limit("layers"), limit("layer_width")

    def is_size(n: Json) -> bool:
        return isinstance(n, int) and not isinstance(n, bool) and 1 <= n <= width

    def is_shape(shape: Json) -> bool:
        return isinstance(shape, list) and len(shape) == 2 and all(map(is_size, shape))

    if not (isinstance(value, list) and 1 <= len(value) <= most and all(map(is_shape, value))):
        _wrong(at, value, f"1 to {most} pairs [out, in], each 1 to {width}")


def is_label(text: Json) -> bool:
    rule = rules()["label"]
    return (
        isinstance(text, str)
        and 1 <= len(text) <= rule["most"]
        and not any(low <= ord(c) <= high for c in text for low, high in rule["refused"])
    )


def _is_hex(text: Json, size: int) -> bool:
    return isinstance(text, str) and len(text) == 2 * size and set(text) <= set("0123456789abcdef")


def _in_range(field: Mapping[str, Any], v: float, at: str, value: Json) -> None:
    if "least" in field and not v >= field["least"]:
        want = f"{field['least']} or more"
    elif "above" in field and not v > field["above"]:
        want = f"more than {field['above']}"
    elif "most" in field and not v <= field["most"]:
        want = f"at most {field['most']}"
    elif "below" in field and not v < field["below"]:
        want = f"less than {field['below']}"
    elif field.get("whole") and not v.is_integer():
        want = "a whole number"
    else:
        return
    _wrong(at, value, want)


def _below(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _wrong(at: str, value: Json, want: str) -> None:
    raise Refused("field", at or "manifest", f"is {_said(value)}, want {want}")


def _said(value: Json) -> str:
    """A value as part of a message: short."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "..."


# ---------------------------------------------------------------- what fields say of one another


def is_service_name(name: str) -> bool:
    """a-z, 0-9, `_`, `-` and single inner dots, first a letter or digit."""

    def is_part(part: str) -> bool:
        letters = "abcdefghijklmnopqrstuvwxyz0123456789"
        return part[:1] in set(letters) and set(part) <= set(letters + "_-")

    return len(name) <= rules()["service_name_bytes"] and all(map(is_part, name.split(".")))


def is_allowed_file(name: str, models: Sequence[str]) -> bool:
    """Whether a bundle may hold it, beside manifest and signature."""
    service = name.startswith("services/") and name.endswith(".toml") and is_service_name(name[len("services/") : -len(".toml")])
    return service or name in ("platform.toml", "card.md", *(f"models/{model}.safetensors" for model in models))


def most_of(what: str, platform: Mapping[str, Any]) -> float:
    """The most that something can be on a platform."""
    ways = float(platform["ways"])
    return {"one": 1.0, "cores": platform["cores"], "ways": ways, "cache_mb": ways * platform["mb_per_way"]}[what]


def _has(need: str | None, manifest: Mapping[str, Any]) -> bool:
    """Whether a host of this feature set and platform has it."""
    platform = manifest["platform"]
    return {
        None: True,
        "pmu": manifest["feature_set"] == "full",
        "ways": platform["ways"] > 0,
        "mba": platform["mba"],
    }[need]


def _rule(kind: str, name: str, model: str, manifest: Mapping[str, Any], at: str) -> dict[str, Any]:
    """The rule for a name of one of a model's lists."""
    for rule in rules()[kind]:
        if rule["name"] == name and model in rule.get("of", [model]):
            if rule.get("since", 0) > manifest["format_version"]:
                raise Refused(kind, at, f"is unknown in version {manifest['format_version']}")
            if _has(rule.get("needs"), manifest):
                found: dict[str, Any] = rule
                return found
            platform = manifest["platform"]
            has = f"feature set {manifest['feature_set']}, {platform['ways']} ways, MBA {str(platform['mba']).lower()}"
            raise Refused(kind, at, f"is not to be had with {has}")
    raise Refused(kind, at, "is not known there")


def check_inputs(manifest: Mapping[str, Any], at: str, model: str, inputs: Sequence[Mapping[str, Any]]) -> None:
    seen: set[str] = set()
    for i in inputs:
        name, low, high = i["name"], i["min"], i["max"]
        where = f"{at}.inputs.{name}"
        rule = _rule("inputs", name, model, manifest, where)
        if name in seen:
            raise Refused("inputs", where, "is named twice")
        seen.add(name)
        if low >= high:
            raise Refused("inputs", where, f"bounds {low}..{high} are empty")
        known = relative.table().get(name)
        if known is not None and (low, high) != (known.min, known.max):
            raise Refused("inputs", where, f"bounds {low}..{high} are of other formulas, which have {known.min}..{known.max}")
        if "most" in rule:
            most = most_of(rule["most"], manifest["platform"])
            if low < 0.0 or high > most * (1.0 + limit("rounding")):
                raise Refused("inputs", where, f"bounds {low}..{high} leave the machine's 0..{most}")


def check_outputs(manifest: Mapping[str, Any], at: str, model: str, outputs: Sequence[Mapping[str, Any]]) -> None:
    seen: set[str] = set()
    for o in outputs:
        name, mean = o["name"], o["offset"]
        where = f"{at}.outputs.{name}"
        rule = _rule("outputs", name, model, manifest, where)
        if name in seen:
            raise Refused("outputs", where, "is named twice")
        seen.add(name)
        if "most" in rule:
            most = most_of(rule["most"], manifest["platform"])
            if not 0.0 <= mean <= most * (1.0 + limit("rounding")):
                raise Refused("outputs", where, f"its mean {mean} leaves the machine's 0..{most}")
    for o in outputs:
        other = _rule("outputs", o["name"], model, manifest, f"{at}.outputs.{o['name']}").get("with")
        if other is not None and other not in seen:
            raise Refused("outputs", f"{at}.outputs.{o['name']}", f"is an end of an interval without the other, {other}")
    for rule in rules()["outputs"]:
        needed = model in rule.get("of", [model]) and not rule.get("optional") and _has(rule.get("needs"), manifest)
        if needed and rule["name"] not in seen:
            raise Refused("outputs", f"{at}.outputs.{rule['name']}", "is missing")


def check_actions(manifest: Mapping[str, Any], at: str, spec: Mapping[str, Any]) -> None:
    known = [action["name"] for action in rules()["actions"]]
    if spec["actions"] != known:
        raise Refused("actions", f"{at}.actions", f"want {', '.join(known)}")
    seen: set[str] = set()
    for action in spec["available_actions"]:
        where = f"{at}.available_actions.{action}"
        _rule("actions", action, "c", manifest, where)
        if action in seen:
            raise Refused("actions", where, "is named twice")
        seen.add(action)


def check_pool(at: str, hyperparameters: Mapping[str, float]) -> None:
    """A pool that cannot hold a batch never teaches anything."""
    replay, batch = hyperparameters.get("replay"), hyperparameters["batch"]
    if replay is not None and replay < batch:
        raise Refused("hyperparameters", f"{at}.hyperparameters.replay", f"{replay} is below the batch of {batch}")


def check_strangeness(at: str, layers: Sequence[Sequence[int]], inputs: int) -> None:
    """The score is of one layer, as wide as the model's inputs."""
    if [list(shape) for shape in layers] != [[inputs, inputs]]:
        raise Refused("layers", at, f"want one layer [{inputs}, {inputs}]")


def check_layers(at: str, layers: Sequence[Sequence[int]], inputs: int, outputs: int) -> None:
    """Layers must join: each takes what the one before gives."""
    width = inputs
    for n, (rows, cols) in enumerate(layers):
        if cols != width:
            raise Refused("layers", at, f"layer {n} is [{rows}, {cols}], the one before gives {width} values")
        width = rows
    if width != outputs:
        raise Refused("layers", at, f"the last layer gives {width} values, {outputs} are named")
