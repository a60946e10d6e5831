import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnrollRequest(_message.Message):
    __slots__ = ("token", "certificate_request_der", "silo_time")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_REQUEST_DER_FIELD_NUMBER: _ClassVar[int]
    SILO_TIME_FIELD_NUMBER: _ClassVar[int]
    token: str
    certificate_request_der: bytes
    silo_time: _timestamp_pb2.Timestamp
    def __init__(self, token: _Optional[str] = ..., certificate_request_der: _Optional[bytes] = ..., silo_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class EnrollResponse(_message.Message):
    __slots__ = ("certificate_der", "authority_der", "silo", "federation", "renew_time")
    CERTIFICATE_DER_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_DER_FIELD_NUMBER: _ClassVar[int]
    SILO_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    RENEW_TIME_FIELD_NUMBER: _ClassVar[int]
    certificate_der: bytes
    authority_der: bytes
    silo: str
    federation: str
    renew_time: _timestamp_pb2.Timestamp
    def __init__(self, certificate_der: _Optional[bytes] = ..., authority_der: _Optional[bytes] = ..., silo: _Optional[str] = ..., federation: _Optional[str] = ..., renew_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class RenewCertificateRequest(_message.Message):
    __slots__ = ("certificate_request_der",)
    CERTIFICATE_REQUEST_DER_FIELD_NUMBER: _ClassVar[int]
    certificate_request_der: bytes
    def __init__(self, certificate_request_der: _Optional[bytes] = ...) -> None: ...

class RenewCertificateResponse(_message.Message):
    __slots__ = ("certificate_der", "renew_time")
    CERTIFICATE_DER_FIELD_NUMBER: _ClassVar[int]
    RENEW_TIME_FIELD_NUMBER: _ClassVar[int]
    certificate_der: bytes
    renew_time: _timestamp_pb2.Timestamp
    def __init__(self, certificate_der: _Optional[bytes] = ..., renew_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ("left_time",)
    LEFT_TIME_FIELD_NUMBER: _ClassVar[int]
    left_time: _timestamp_pb2.Timestamp
    def __init__(self, left_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
