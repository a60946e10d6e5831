from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Meaning(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEANING_UNSPECIFIED: _ClassVar[Meaning]
    MEANING_VALUES: _ClassVar[Meaning]
    MEANING_DIFFERENCE: _ClassVar[Meaning]
    MEANING_OVERWRITE: _ClassVar[Meaning]

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    DATA_TYPE_FLOAT32: _ClassVar[DataType]
    DATA_TYPE_FLOAT64: _ClassVar[DataType]
    DATA_TYPE_FLOAT16: _ClassVar[DataType]
    DATA_TYPE_BFLOAT16: _ClassVar[DataType]
    DATA_TYPE_INT64: _ClassVar[DataType]
    DATA_TYPE_INT32: _ClassVar[DataType]
    DATA_TYPE_UINT8: _ClassVar[DataType]

class ReferenceForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFERENCE_FORM_UNSPECIFIED: _ClassVar[ReferenceForm]
    REFERENCE_FORM_BITS: _ClassVar[ReferenceForm]
    REFERENCE_FORM_SUM: _ClassVar[ReferenceForm]
MEANING_UNSPECIFIED: Meaning
MEANING_VALUES: Meaning
MEANING_DIFFERENCE: Meaning
MEANING_OVERWRITE: Meaning
DATA_TYPE_UNSPECIFIED: DataType
DATA_TYPE_FLOAT32: DataType
DATA_TYPE_FLOAT64: DataType
DATA_TYPE_FLOAT16: DataType
DATA_TYPE_BFLOAT16: DataType
DATA_TYPE_INT64: DataType
DATA_TYPE_INT32: DataType
DATA_TYPE_UINT8: DataType
REFERENCE_FORM_UNSPECIFIED: ReferenceForm
REFERENCE_FORM_BITS: ReferenceForm
REFERENCE_FORM_SUM: ReferenceForm

class TensorSpec(_message.Message):
    __slots__ = ("name", "shape", "data_type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data_type: DataType
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data_type: _Optional[_Union[DataType, str]] = ...) -> None: ...

class GroupManifest(_message.Message):
    __slots__ = ("name", "meaning", "base_digest", "tensors", "encoded_bytes", "tensors_digest", "reference_digest", "reference_form")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEANING_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    ENCODED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FORM_FIELD_NUMBER: _ClassVar[int]
    name: str
    meaning: Meaning
    base_digest: bytes
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    encoded_bytes: int
    tensors_digest: bytes
    reference_digest: bytes
    reference_form: ReferenceForm
    def __init__(self, name: _Optional[str] = ..., meaning: _Optional[_Union[Meaning, str]] = ..., base_digest: _Optional[bytes] = ..., tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., encoded_bytes: _Optional[int] = ..., tensors_digest: _Optional[bytes] = ..., reference_digest: _Optional[bytes] = ..., reference_form: _Optional[_Union[ReferenceForm, str]] = ...) -> None: ...

class PayloadManifest(_message.Message):
    __slots__ = ("format", "groups")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    format: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupManifest]
    def __init__(self, format: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupManifest, _Mapping]]] = ...) -> None: ...

class PayloadReference(_message.Message):
    __slots__ = ("digest", "size_bytes", "groups", "tensors_digest", "reference_digest")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    size_bytes: int
    groups: _containers.RepeatedScalarFieldContainer[str]
    tensors_digest: bytes
    reference_digest: bytes
    def __init__(self, digest: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., groups: _Optional[_Iterable[str]] = ..., tensors_digest: _Optional[bytes] = ..., reference_digest: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("offset", "crc32", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    crc32: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., crc32: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
