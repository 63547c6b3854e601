"""The manifest of a checkpoint: the training state, and digests of all tensors and files.

It is the file `training.json`, written last. It contains a digest of its own text without that
digest, so no byte of a checkpoint can change unnoticed. There is no pickle in a checkpoint.
"""

import hashlib
import json
from typing import Annotated, ClassVar, Self

from pydantic import Field, JsonValue, NonNegativeInt, model_validator

from synth.errors import SynthError
from synth.records.record import Record
from synth.units import shown

from .errors import Damaged
from .training_state import TrainingState

MANIFEST = "training.json"

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
DtypeName = Annotated[
    str, Field(pattern=r"^(bool|u?int\d{1,2}|b?float\d{1,2}(_[a-z0-9]{1,12})?|complex\d{2,3})$")
]
FileName = Annotated[str, Field(pattern=r"^rank-\d{1,9}\.safetensors$")]


class StoredTensor(Record):
    """A tensor, in the file under its own name; complex ones as their real view."""

    file: FileName
    dtype: DtypeName
    shape: tuple[NonNegativeInt, ...]
    sha256: Digest


class StoredFile(Record):
    """A file of tensors: its length, and the digest of its safetensors header."""

    bytes: NonNegativeInt
    header_sha256: Digest


class Manifest(TrainingState):
    """Format version 4. `aliases` are further names of tensors that are stored once.

    `optimizer_values` is the optimizer state that is no tensor, by parameter and name, as
    `nested_values` encodes it; version 3 has none. Version 2 has no numbers of updates.
    """

    VERSION: ClassVar[int] = 4
    OLDEST: ClassVar[int] = 2

    files: dict[FileName, StoredFile]
    tensors: dict[str, StoredTensor]
    aliases: dict[str, str]
    optimizer_values: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    checksum: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, tensor in self.tensors.items():
            if tensor.file not in self.files:
                raise ValueError(
                    f"tensor {shown(name)} is in {tensor.file}, which is not one of its files"
                )
        for name, stored_name in self.aliases.items():
            if stored_name not in self.tensors:
                raise ValueError(f"alias {shown(name)} is of no tensor that is stored")
        return self

    def sealed(self) -> str:
        """Render the file's text, with its checksum."""
        text = self.replace(checksum="").to_json()
        return text.replace(_checksum_line(""), _checksum_line(_digest(text)), 1)

    @classmethod
    def unsealed(cls, content: bytes, name: str) -> Self | TrainingState:
        """Parse the text that `sealed` gave; of format version 1, only the training state.

        Raises:
            Damaged: it was changed since it was written.
            SynthError: a later version wrote it.
        """
        try:
            text = content.decode()
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Damaged(f"{name} is damaged: {error}") from None
        if not isinstance(data, dict):
            raise Damaged(f"{name} is damaged: it is not a JSON object")
        checksum = data.get("checksum")
        if checksum is None and data.get("schema_version") == TrainingState.VERSION:
            return TrainingState.model_validate_file(data, name)
        if not isinstance(checksum, str):
            raise Damaged(f"{name} is damaged: it has no checksum")
        line = _checksum_line(checksum)
        if text.count(line) != 1 or _digest(text.replace(line, _checksum_line(""))) != checksum:
            raise Damaged(f"{name} is damaged: its checksum does not hold")
        try:
            return cls.model_validate_file(data, name)
        except SynthError as error:
            if data.get("schema_version") not in range(cls.OLDEST, cls.VERSION + 1):
                raise
            words = " ".join(str(error).split())
            raise Damaged(f"{name} is damaged: {words}") from None

    @property
    def names(self) -> set[str]:
        """The names of all tensors that can be read."""
        return {*self.tensors, *self.aliases}

    def stored_name(self, name: str) -> str:
        """The name under which a tensor is stored."""
        return self.aliases.get(name, name)

    def state(self) -> TrainingState:
        """Return the training state alone."""
        return TrainingState.model_validate(
            {field: getattr(self, field) for field in TrainingState.model_fields}
        )


def _checksum_line(checksum: str) -> str:
    return f'\n "checksum": "{checksum}"\n'


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
