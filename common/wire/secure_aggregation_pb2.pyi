from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SecureTask(_message.Message):
    __slots__ = ("step", "phase", "nonce", "threshold", "members", "sealed", "form", "survivors", "confirmations", "roster")
    class Step(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STEP_UNSPECIFIED: _ClassVar[SecureTask.Step]
        STEP_KEYS: _ClassVar[SecureTask.Step]
        STEP_SHARES: _ClassVar[SecureTask.Step]
        STEP_MASK: _ClassVar[SecureTask.Step]
        STEP_CONFIRM: _ClassVar[SecureTask.Step]
        STEP_UNMASK: _ClassVar[SecureTask.Step]
    STEP_UNSPECIFIED: SecureTask.Step
    STEP_KEYS: SecureTask.Step
    STEP_SHARES: SecureTask.Step
    STEP_MASK: SecureTask.Step
    STEP_CONFIRM: SecureTask.Step
    STEP_UNMASK: SecureTask.Step
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    CONFIRMATIONS_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    step: SecureTask.Step
    phase: str
    nonce: bytes
    threshold: int
    members: _containers.RepeatedCompositeFieldContainer[SecureMember]
    sealed: _containers.RepeatedCompositeFieldContainer[SealedShare]
    form: MaskForm
    survivors: _containers.RepeatedScalarFieldContainer[str]
    confirmations: _containers.RepeatedCompositeFieldContainer[Confirmation]
    roster: _containers.RepeatedCompositeFieldContainer[RosterEntry]
    def __init__(self, step: _Optional[_Union[SecureTask.Step, str]] = ..., phase: _Optional[str] = ..., nonce: _Optional[bytes] = ..., threshold: _Optional[int] = ..., members: _Optional[_Iterable[_Union[SecureMember, _Mapping]]] = ..., sealed: _Optional[_Iterable[_Union[SealedShare, _Mapping]]] = ..., form: _Optional[_Union[MaskForm, _Mapping]] = ..., survivors: _Optional[_Iterable[str]] = ..., confirmations: _Optional[_Iterable[_Union[Confirmation, _Mapping]]] = ..., roster: _Optional[_Iterable[_Union[RosterEntry, _Mapping]]] = ...) -> None: ...

class SecureMember(_message.Message):
    __slots__ = ("silo", "identity", "keys")
    SILO_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    silo: str
    identity: bytes
    keys: RoundKeys
    def __init__(self, silo: _Optional[str] = ..., identity: _Optional[bytes] = ..., keys: _Optional[_Union[RoundKeys, _Mapping]] = ...) -> None: ...

class RoundKeys(_message.Message):
    __slots__ = ("seal_key", "mask_key", "signature")
    SEAL_KEY_FIELD_NUMBER: _ClassVar[int]
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    seal_key: bytes
    mask_key: bytes
    signature: bytes
    def __init__(self, seal_key: _Optional[bytes] = ..., mask_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SealedShare(_message.Message):
    __slots__ = ("silo", "sealed")
    SILO_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    silo: str
    sealed: bytes
    def __init__(self, silo: _Optional[str] = ..., sealed: _Optional[bytes] = ...) -> None: ...

class MaskForm(_message.Message):
    __slots__ = ("bits", "bounds", "silo_count", "weight_reference", "random_k", "totals")
    BITS_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    SILO_COUNT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_REFERENCE_FIELD_NUMBER: _ClassVar[int]
    RANDOM_K_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    bits: int
    bounds: _containers.RepeatedScalarFieldContainer[float]
    silo_count: int
    weight_reference: int
    random_k: float
    totals: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bits: _Optional[int] = ..., bounds: _Optional[_Iterable[float]] = ..., silo_count: _Optional[int] = ..., weight_reference: _Optional[int] = ..., random_k: _Optional[float] = ..., totals: _Optional[_Iterable[str]] = ...) -> None: ...

class Confirmation(_message.Message):
    __slots__ = ("silo", "signature")
    SILO_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    silo: str
    signature: bytes
    def __init__(self, silo: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RosterEntry(_message.Message):
    __slots__ = ("number", "silo", "identity", "removed", "chain")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SILO_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    number: int
    silo: str
    identity: bytes
    removed: bool
    chain: bytes
    def __init__(self, number: _Optional[int] = ..., silo: _Optional[str] = ..., identity: _Optional[bytes] = ..., removed: bool = ..., chain: _Optional[bytes] = ...) -> None: ...

class SecureAnswer(_message.Message):
    __slots__ = ("keys", "shares", "confirmation", "unmask")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    CONFIRMATION_FIELD_NUMBER: _ClassVar[int]
    UNMASK_FIELD_NUMBER: _ClassVar[int]
    keys: RoundKeys
    shares: SecureShares
    confirmation: bytes
    unmask: UnmaskAnswer
    def __init__(self, keys: _Optional[_Union[RoundKeys, _Mapping]] = ..., shares: _Optional[_Union[SecureShares, _Mapping]] = ..., confirmation: _Optional[bytes] = ..., unmask: _Optional[_Union[UnmaskAnswer, _Mapping]] = ...) -> None: ...

class SecureShares(_message.Message):
    __slots__ = ("sealed", "commitment")
    SEALED_FIELD_NUMBER: _ClassVar[int]
    COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    sealed: _containers.RepeatedCompositeFieldContainer[SealedShare]
    commitment: bytes
    def __init__(self, sealed: _Optional[_Iterable[_Union[SealedShare, _Mapping]]] = ..., commitment: _Optional[bytes] = ...) -> None: ...

class UnmaskAnswer(_message.Message):
    __slots__ = ("self_shares", "key_shares")
    SELF_SHARES_FIELD_NUMBER: _ClassVar[int]
    KEY_SHARES_FIELD_NUMBER: _ClassVar[int]
    self_shares: _containers.RepeatedCompositeFieldContainer[RevealedShare]
    key_shares: _containers.RepeatedCompositeFieldContainer[RevealedShare]
    def __init__(self, self_shares: _Optional[_Iterable[_Union[RevealedShare, _Mapping]]] = ..., key_shares: _Optional[_Iterable[_Union[RevealedShare, _Mapping]]] = ...) -> None: ...

class RevealedShare(_message.Message):
    __slots__ = ("silo", "share")
    SILO_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    silo: str
    share: bytes
    def __init__(self, silo: _Optional[str] = ..., share: _Optional[bytes] = ...) -> None: ...
