"""Where a request's values come from: option, environment variable, ``perfbisect.yaml``, default."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import click
from pydantic import ConfigDict, ValidationError, create_model

from perfbisect.commands.options import BudgetOptions, FolderSettings, MeasureOptions
from perfbisect.commands.request import Request, RequestField, request_fields
from perfbisect.common.yaml_source import Located, load, validate
from perfbisect.errors import LocatedError, UsageError
from perfbisect.setup.checkout import SETTINGS_FILE


@dataclass(frozen=True)
class Settings:
    """The text of each key that is set, and the folder that paths are relative to."""

    folder: Path = Path()
    texts: Mapping[str, str] = field(default_factory=dict)
    document: Located | None = None

    def text(self, key: str) -> str | None:
        """The text of a key; None if it is not set."""
        return self.texts.get(key)

    def value(self, field: RequestField) -> Any:
        """The value of an option's key, None if it is not set. :raises LocatedError: it is none."""
        text = self.texts.get(field.key)
        if text is None or field.setting is None:
            return None
        try:
            return field.setting(text, self.folder)
        except UsageError as error:
            raise self.error(field.key, error.message, error.next_step) from None

    def error(self, key: str, message: str, allowed: str | None = None) -> LocatedError:
        """An error at a key."""
        document = self.document or Located(self.folder / SETTINGS_FILE, None)
        return document.error((key,), message, allowed)


NO_SETTINGS = Settings()


def load_settings(root: Path | None) -> Settings:
    """The settings of a repository, unset without ``perfbisect.yaml``. :raises LocatedError: invalid."""
    if root is None or not (root / SETTINGS_FILE).is_file():
        return NO_SETTINGS
    document = load(root / SETTINGS_FILE)
    if document.data is None:
        return Settings(root)
    requests = (FolderSettings, MeasureOptions, BudgetOptions)
    keys = [field.key for request in requests for field in request_fields(request) if field.setting]
    fields: dict[str, Any] = dict.fromkeys(keys, (str | None, None))
    strict = ConfigDict(frozen=True, extra="forbid", strict=True)
    model = create_model("PerfbisectYaml", __config__=strict, **fields)
    texts = validate(document, model).model_dump(exclude_none=True)
    return Settings(root, texts, document)


RequestT = TypeVar("RequestT", bound=Request)


def resolve(kind: type[RequestT], given: Mapping[str, Any], settings: Settings) -> RequestT:
    """A request of values that are given, where they are not None, and of the settings."""
    typed = {name: value for name, value in given.items() if value is not None}
    return kind(**resolve_values(kind, typed, settings))


def resolve_values(
    command: Callable[..., Any], typed: Mapping[str, Any], settings: Settings
) -> dict[str, Any]:
    """What was typed, and the settings that were not, of the environment or of ``perfbisect.yaml``.

    Raises:
        UsageError: a value is wrong; it names the variable, or the file with its line.
    """
    fields = {field.name: field for field in request_fields(command) if field.setting}
    from_environment = {
        name: os.environ[field.variable] for name, field in fields.items() if os.environ.get(field.variable)
    }
    from_file = {name: settings.value(field) for name, field in fields.items() if field.key in settings.texts}
    if not (from_environment or from_file):  # pydantic-settings takes 0.14 s to import
        return dict(typed)
    try:
        return {**typed, **_from_sources(fields, typed, from_environment, from_file)}
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        field = fields[str(detail["loc"][0])]
        message = str(detail.get("ctx", {}).get("error", detail["msg"]))
        if field.name in from_environment:
            raise UsageError(f"${field.variable}: {message}") from None
        raise settings.error(field.key, message) from None


def _from_sources(
    fields: Mapping[str, RequestField],
    typed: Mapping[str, Any],
    from_environment: dict[str, Any],
    from_file: dict[str, Any],
) -> dict[str, Any]:
    """The values of settings: as typed, else of the environment, else of the file."""
    from pydantic import BeforeValidator
    from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

    class Sourced(BaseSettings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del env_settings, dotenv_settings, file_secret_settings
            # A variable is named after its option (METRIC); pydantic's own source would use the field's name
            # (metrics).
            lower = (from_environment, from_file)
            return init_settings, *(InitSettingsSource(settings_cls, values) for values in lower)

    declared: dict[str, Any] = {
        name: (Annotated[field.hint, BeforeValidator(partial(_read, field))], field.default)
        for name, field in fields.items()
    }
    model: Any = create_model("SourcedSettings", __base__=Sourced, **declared)
    sourced = model(**{name: value for name, value in typed.items() if name in fields})
    return {name: getattr(sourced, name) for name in fields}


def _read(field: RequestField, value: object) -> object:
    """A value of a source, whose text is read as that of an option is. :raises ValueError: it is wrong."""
    if not isinstance(value, str):
        return value
    try:
        read = field.type.convert(value, None, None)
    except click.BadParameter as error:
        raise ValueError(error.message) from None
    return (read,) if field.is_many else read
