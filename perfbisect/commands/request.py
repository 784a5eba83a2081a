"""Requests: the fields of a request are the options, the help and the settings of a command."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import click

from perfbisect.common.quantities import parse_minutes, parse_share
from perfbisect.jobs.requests import NO_REQUEST, STARTER_VARIABLE, RequestRecord
from perfbisect.redaction import without_secrets
from perfbisect.system.environ import user_name

if TYPE_CHECKING:
    _Base = click.ParamType[float]
    _AnyType = click.ParamType[Any]
else:  # generic only from click 8.2 on
    _Base = _AnyType = click.ParamType

DeclaredT = TypeVar("DeclaredT", bound=Callable[..., Any])

WORKSPACE = "workspace"
"""The parameter of a command that gets the workspace."""

OPTIONS, OUTPUT = "Options", "Output"
"""Panels of the help."""

FromFile = Callable[[str, Path], object]
"""The value of a setting: its text in ``perfbisect.yaml``, and the folder of that file."""


class UnitParam(_Base):
    """A number with a unit, parsed by a function that raises ValueError.

    ``unit``: one that it is written with, which is ``scale`` of the number.
    """

    def __init__(self, name: str, read: Callable[[str], float], unit: str, scale: float = 1.0) -> None:
        self.name = name
        self._read, self._unit, self._scale = read, unit, scale

    def written(self, value: float) -> str:
        """A number as it may be typed."""
        return f"{value / self._scale:.10g}{self._unit}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float | int):
            return value
        try:
            return self._read(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


PATH = click.Path(path_type=Path)
MINUTES = UnitParam("duration", parse_minutes, "m")
PERCENT = UnitParam("percent", parse_share, "%", 0.01)
DAY = click.DateTime(["%Y-%m-%d"])
"""A day; its field is text in ISO 8601."""


def as_text(text: str, folder: Path) -> str:
    """A setting whose value is its text."""
    del folder
    return text


def as_path(text: str, folder: Path) -> Path:
    """A setting that is a path, relative to the folder of the file."""
    return (folder / Path(text).expanduser()).resolve()


def as_file_or_name(text: str, folder: Path) -> str:
    """A setting that is a file relative to the folder, or else a name."""
    file = folder / Path(text).expanduser()
    return str(file) if file.is_file() else text


@dataclass(frozen=True)
class Option:
    """How a field of a request is typed. ``flags``: by default the field's name.

    ``type``: by default that of the field. ``default``: what a default that is no value stands for.
    ``setting``: how the value in ``perfbisect.yaml`` is read; such an option has an environment variable too.
    """

    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    type: _AnyType | None = None
    default: str = ""
    setting: FromFile | None = None
    is_repeated: bool = True
    """A tuple takes the option as often as it is typed."""
    panel: str = OPTIONS


@dataclass(frozen=True)
class Argument:
    """A field of a request that is typed without the name of an option."""

    metavar: str | None = None
    type: _AnyType | None = None
    setting: FromFile | None = None


AsJson = Annotated[bool, Option("One JSON document on standard output.", ("--json",), panel=OUTPUT)]
Full = Annotated[bool, Option("With --json: do not shorten lists.", panel=OUTPUT)]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a command is asked for, where it is handed on. ``record``: what was typed."""

    record: RequestRecord = NO_REQUEST

    def options_of(self, *bases: type[Request]) -> dict[str, Any]:
        """The fields of base classes, for another request that inherits them."""
        return {field.name: getattr(self, field.name) for base in bases for field in fields(base)}


def prints(*documents: str, has_full: bool = False) -> Callable[[DeclaredT], DeclaredT]:
    """Say which documents ``--json`` prints, each as ``module:Class`` or a tuple of classes.

    ``has_full``: with ``--full``, which a request declares itself.
    """

    def declare(declared: DeclaredT) -> DeclaredT:
        printing: Any = declared
        printing.prints, printing.has_full = documents, has_full
        return declared

    return declare


@dataclass(frozen=True)
class RequestField:
    """A field of a request, or a parameter of a command, that can be typed."""

    name: str
    hint: Any
    default: Any
    declared: Option | Argument
    type: _AnyType
    is_many: bool

    @property
    def panel(self) -> str:
        """The panel of the help that shows it."""
        return self.declared.panel if isinstance(self.declared, Option) else ""

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def setting(self) -> FromFile | None:
        """How its value in ``perfbisect.yaml`` is read; None if it is no setting."""
        return self.declared.setting

    @property
    def flags(self) -> tuple[str, ...]:
        own = self.declared.flags if isinstance(self.declared, Option) else ()
        return own or (f"--{self.name.replace('_', '-')}",)

    @property
    def key(self) -> str:
        """Its key in ``perfbisect.yaml``: the name of the option."""
        return self.flags[-1].removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """Its environment variable, if it is a setting."""
        return f"PERFBISECT_{self.key.upper()}"

    def parameter(self) -> click.Parameter:
        """The parameter of click."""
        if isinstance(self.declared, Argument):
            return click.Argument(
                [self.name],
                type=self.type,
                required=self.is_required,
                nargs=-1 if self.is_many else 1,
                metavar=self.declared.metavar,
            )
        is_flag = self.type is click.BOOL
        has_value = not (self.is_required or is_flag or self.default in (None, "", ()))
        is_shown = has_value and self.setting is None and not self.declared.default
        return click.Option(
            [self.name, *self.flags],
            type=None if is_flag else self.type,
            is_flag=is_flag,
            multiple=self.is_many and self.declared.is_repeated,
            required=self.is_required,
            metavar=self.declared.metavar,
            show_default=is_shown,
            callback=self._read,
            help=self._help(self.declared),
            **({"default": self.default} if is_shown else {}),
        )

    def texts(self, value: Any) -> tuple[str, ...]:
        """A value as it is typed: a text each time, none for a flag."""
        if self.type is click.BOOL:
            return ()
        written = self.type.written if isinstance(self.type, UnitParam) else str
        return tuple(map(written, value if self.is_many else (value,)))

    def _read(self, context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        """A value of click as the field has it: a day is text, many are a tuple, also if typed once."""
        del context, parameter
        if self.type is DAY:
            return f"{value:%Y-%m-%d}" if value else ""
        return (value,) if self.is_many and isinstance(value, str) else value

    def _help(self, declared: Option) -> str:
        """The help, with where the default comes from."""
        places = [f"${self.variable}", "perfbisect.yaml"] if self.setting else []
        places += [declared.default] if declared.default else []
        if not places:
            return declared.help
        *first, last = places
        shown = f"{', '.join(first)} or {last}" if first else last
        return f"{declared.help}  [default: {shown}]"


def request_fields(command: Callable[..., Any]) -> tuple[RequestField, ...]:
    """What can be typed for a function or a request: its own before what it inherits.

    Every command has ``--json``.
    """
    hints = _hints(command)
    defaults = {name: one.default for name, one in inspect.signature(command).parameters.items()}
    found: dict[str, RequestField] = {}
    for name, hint in hints.items():
        metadata = getattr(hint, "__metadata__", ())
        for item in metadata:
            if isinstance(item, dict):  # options that choose the workspace
                found |= {name: declare_field(name, used) for name, used in item.items()}
            elif isinstance(item, Option | Argument):
                found[name] = declare_field(name, hint, defaults[name])
    if getattr(command, "has_full", False):
        found["full"] = declare_field("full", Full, False)
    return (*found.values(), *(() if "as_json" in found else (declare_field("as_json", AsJson, False),)))


def record_request(verb: str, command: Callable[..., Any], typed: Mapping[str, Any]) -> RequestRecord:
    """What was typed for a function or a request, and who started it."""
    arguments: dict[str, tuple[str, ...]] = {}
    options: dict[str, tuple[str, ...]] = {}
    for field in request_fields(command):
        if field.name in typed:
            place = arguments if isinstance(field.declared, Argument) else options
            place[field.key] = tuple(map(without_secrets, field.texts(typed[field.name])))
    return RequestRecord(verb, arguments, options, os.environ.get(STARTER_VARIABLE) or user_name())


def _hints(command: Callable[..., Any]) -> dict[str, Any]:
    """Parameter -> annotation; a class has its own fields first, a function its workspace last."""
    hints = get_type_hints(command, include_extras=True)
    if isinstance(command, type):
        names = [name for owner in command.__mro__ for name in inspect.get_annotations(owner)]
    else:
        # False sorts before True: the workspace's options stand last in the help.
        names = sorted(inspect.signature(command).parameters, key=WORKSPACE.__eq__)
    found = {name: hints[name] for name in names}
    for name, hint in found.items():
        # Python 3.10 makes an annotation optional where the default is None.
        parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
        found[name] = next((part for part in parts if get_origin(part) is Annotated), hint)
    return found


def declare_field(name: str, hint: Any, default: Any = None) -> RequestField:
    """The field of an annotation that has an option or an argument."""
    declared = next(item for item in hint.__metadata__ if isinstance(item, Option | Argument))
    kind, is_many = _click_type(hint)
    return RequestField(name, hint, default, declared, declared.type or kind, is_many)


def _click_type(hint: Any) -> tuple[_AnyType, bool]:
    """How text becomes a value of a type; True for any number of them."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        own = next((item for item in arguments[1:] if isinstance(item, click.ParamType)), None)
        return (own, False) if own is not None else _click_type(arguments[0])
    if origin in (Union, UnionType):
        (inner,) = (part for part in arguments if part is not type(None))
        return _click_type(inner)
    if origin is tuple:
        return _click_type(arguments[0])[0], True
    if origin is Literal:
        return click.Choice(arguments), False
    kinds: dict[Any, _AnyType] = {
        bool: click.BOOL, int: click.INT, float: click.FLOAT, Path: PATH, str: click.STRING,
    }  # fmt: skip
    return kinds[hint], False
