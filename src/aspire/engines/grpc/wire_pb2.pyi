from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromSite(_message.Message):
    __slots__ = ("report",)
    REPORT_FIELD_NUMBER: _ClassVar[int]
    report: Part
    def __init__(self, report: _Optional[_Union[Part, _Mapping]] = ...) -> None: ...

class ToSite(_message.Message):
    __slots__ = ("welcome", "task", "over")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    task: Part
    over: Over
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., task: _Optional[_Union[Part, _Mapping]] = ..., over: _Optional[_Union[Over, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("major", "minor", "site", "parameters", "dtype", "file")
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    major: int
    minor: int
    site: str
    parameters: int
    dtype: str
    file: bytes
    def __init__(self, major: _Optional[int] = ..., minor: _Optional[int] = ..., site: _Optional[str] = ..., parameters: _Optional[int] = ..., dtype: _Optional[str] = ..., file: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("major", "minor", "server", "settings", "file")
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    major: int
    minor: int
    server: bytes
    settings: Settings
    file: bytes
    def __init__(self, major: _Optional[int] = ..., minor: _Optional[int] = ..., server: _Optional[bytes] = ..., settings: _Optional[_Union[Settings, _Mapping]] = ..., file: _Optional[bytes] = ...) -> None: ...

class Settings(_message.Message):
    __slots__ = ("batch_size", "weight_decay", "method", "arguments", "mean", "std")
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    weight_decay: float
    method: str
    arguments: str
    mean: bytes
    std: bytes
    def __init__(self, batch_size: _Optional[int] = ..., weight_decay: _Optional[float] = ..., method: _Optional[str] = ..., arguments: _Optional[str] = ..., mean: _Optional[bytes] = ..., std: _Optional[bytes] = ...) -> None: ...

class Over(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: Header
    data: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("id", "kind", "scalars", "vectors")
    class ScalarsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    scalars: _containers.ScalarMap[str, float]
    vectors: _containers.RepeatedCompositeFieldContainer[Vector]
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., scalars: _Optional[_Mapping[str, float]] = ..., vectors: _Optional[_Iterable[_Union[Vector, _Mapping]]] = ...) -> None: ...

class Vector(_message.Message):
    __slots__ = ("name", "length")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    name: str
    length: int
    def __init__(self, name: _Optional[str] = ..., length: _Optional[int] = ...) -> None: ...
