import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from semisilo.common.wire import secure_aggregation_pb2 as _secure_aggregation_pb2
from semisilo.common.wire import tensors_pb2 as _tensors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AwaitTaskRequest(_message.Message):
    __slots__ = ("version", "methods", "labelled_count", "unlabelled_count", "held_digests", "memory_round", "memory_study", "poll_timeout", "silo_time", "away", "evaluations", "process", "secure_identity", "masked_round", "masked_study", "masked_phase", "secure_identity_proof", "capabilities")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    LABELLED_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNLABELLED_COUNT_FIELD_NUMBER: _ClassVar[int]
    HELD_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_ROUND_FIELD_NUMBER: _ClassVar[int]
    MEMORY_STUDY_FIELD_NUMBER: _ClassVar[int]
    POLL_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    SILO_TIME_FIELD_NUMBER: _ClassVar[int]
    AWAY_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    SECURE_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    MASKED_ROUND_FIELD_NUMBER: _ClassVar[int]
    MASKED_STUDY_FIELD_NUMBER: _ClassVar[int]
    MASKED_PHASE_FIELD_NUMBER: _ClassVar[int]
    SECURE_IDENTITY_PROOF_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    version: str
    methods: _containers.RepeatedScalarFieldContainer[str]
    labelled_count: int
    unlabelled_count: int
    held_digests: _containers.RepeatedScalarFieldContainer[bytes]
    memory_round: int
    memory_study: str
    poll_timeout: _duration_pb2.Duration
    silo_time: _timestamp_pb2.Timestamp
    away: Away
    evaluations: _containers.RepeatedCompositeFieldContainer[SiteEvaluation]
    process: bytes
    secure_identity: bytes
    masked_round: int
    masked_study: str
    masked_phase: str
    secure_identity_proof: bytes
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., methods: _Optional[_Iterable[str]] = ..., labelled_count: _Optional[int] = ..., unlabelled_count: _Optional[int] = ..., held_digests: _Optional[_Iterable[bytes]] = ..., memory_round: _Optional[int] = ..., memory_study: _Optional[str] = ..., poll_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., silo_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., away: _Optional[_Union[Away, _Mapping]] = ..., evaluations: _Optional[_Iterable[_Union[SiteEvaluation, _Mapping]]] = ..., process: _Optional[bytes] = ..., secure_identity: _Optional[bytes] = ..., masked_round: _Optional[int] = ..., masked_study: _Optional[str] = ..., masked_phase: _Optional[str] = ..., secure_identity_proof: _Optional[bytes] = ..., capabilities: _Optional[_Iterable[str]] = ...) -> None: ...

class SiteEvaluation(_message.Message):
    __slots__ = ("study", "round", "labels_alone", "classes", "model_digest")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LABELS_ALONE_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    study: str
    round: int
    labels_alone: bool
    classes: _containers.RepeatedCompositeFieldContainer[ClassResult]
    model_digest: bytes
    def __init__(self, study: _Optional[str] = ..., round: _Optional[int] = ..., labels_alone: bool = ..., classes: _Optional[_Iterable[_Union[ClassResult, _Mapping]]] = ..., model_digest: _Optional[bytes] = ...) -> None: ...

class ClassResult(_message.Message):
    __slots__ = ("image_count", "correct_count", "auroc", "other_count", "correct_other_count", "average_precision")
    IMAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CORRECT_COUNT_FIELD_NUMBER: _ClassVar[int]
    AUROC_FIELD_NUMBER: _ClassVar[int]
    OTHER_COUNT_FIELD_NUMBER: _ClassVar[int]
    CORRECT_OTHER_COUNT_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_PRECISION_FIELD_NUMBER: _ClassVar[int]
    image_count: int
    correct_count: int
    auroc: float
    other_count: int
    correct_other_count: int
    average_precision: float
    def __init__(self, image_count: _Optional[int] = ..., correct_count: _Optional[int] = ..., auroc: _Optional[float] = ..., other_count: _Optional[int] = ..., correct_other_count: _Optional[int] = ..., average_precision: _Optional[float] = ...) -> None: ...

class Away(_message.Message):
    __slots__ = ("reason", "until_time")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Away.Reason]
        REASON_OUTSIDE_HOURS: _ClassVar[Away.Reason]
        REASON_DAILY_BUDGET: _ClassVar[Away.Reason]
        REASON_AWAITING_APPROVAL: _ClassVar[Away.Reason]
    REASON_UNSPECIFIED: Away.Reason
    REASON_OUTSIDE_HOURS: Away.Reason
    REASON_DAILY_BUDGET: Away.Reason
    REASON_AWAITING_APPROVAL: Away.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNTIL_TIME_FIELD_NUMBER: _ClassVar[int]
    reason: Away.Reason
    until_time: _timestamp_pb2.Timestamp
    def __init__(self, reason: _Optional[_Union[Away.Reason, str]] = ..., until_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class AwaitTaskResponse(_message.Message):
    __slots__ = ("task", "standby", "audit_head", "warning")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    AUDIT_HEAD_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    task: Task
    standby: Standby
    audit_head: AuditHead
    warning: str
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., standby: _Optional[_Union[Standby, _Mapping]] = ..., audit_head: _Optional[_Union[AuditHead, _Mapping]] = ..., warning: _Optional[str] = ...) -> None: ...

class AuditHead(_message.Message):
    __slots__ = ("number", "chain", "event_time", "restored_time", "backup_time", "signature", "certificate_der")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_FIELD_NUMBER: _ClassVar[int]
    RESTORED_TIME_FIELD_NUMBER: _ClassVar[int]
    BACKUP_TIME_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_DER_FIELD_NUMBER: _ClassVar[int]
    number: int
    chain: bytes
    event_time: _timestamp_pb2.Timestamp
    restored_time: _timestamp_pb2.Timestamp
    backup_time: _timestamp_pb2.Timestamp
    signature: bytes
    certificate_der: bytes
    def __init__(self, number: _Optional[int] = ..., chain: _Optional[bytes] = ..., event_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., restored_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., backup_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., signature: _Optional[bytes] = ..., certificate_der: _Optional[bytes] = ...) -> None: ...

class Standby(_message.Message):
    __slots__ = ("reason", "study", "round", "round_count", "text")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Standby.Reason]
        REASON_WAITING_FOR_SILOS: _ClassVar[Standby.Reason]
        REASON_COORDINATOR_WORKING: _ClassVar[Standby.Reason]
        REASON_NOT_SAMPLED: _ClassVar[Standby.Reason]
        REASON_PAUSED: _ClassVar[Standby.Reason]
        REASON_NO_STUDY: _ClassVar[Standby.Reason]
        REASON_SET_ASIDE: _ClassVar[Standby.Reason]
    REASON_UNSPECIFIED: Standby.Reason
    REASON_WAITING_FOR_SILOS: Standby.Reason
    REASON_COORDINATOR_WORKING: Standby.Reason
    REASON_NOT_SAMPLED: Standby.Reason
    REASON_PAUSED: Standby.Reason
    REASON_NO_STUDY: Standby.Reason
    REASON_SET_ASIDE: Standby.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    STUDY_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUND_COUNT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    reason: Standby.Reason
    study: str
    round: int
    round_count: int
    text: str
    def __init__(self, reason: _Optional[_Union[Standby.Reason, str]] = ..., study: _Optional[str] = ..., round: _Optional[int] = ..., round_count: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("task_id", "study", "round", "round_count", "phase", "method", "settings_json", "model", "image", "augmentation", "numerics", "payloads", "last_folded_round", "seed", "deadline_time", "report_interval", "uplink", "model_round", "measure", "secure", "dp", "study_card", "model_digest")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STUDY_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUND_COUNT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    AUGMENTATION_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    LAST_FOLDED_ROUND_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_TIME_FIELD_NUMBER: _ClassVar[int]
    REPORT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    UPLINK_FIELD_NUMBER: _ClassVar[int]
    MODEL_ROUND_FIELD_NUMBER: _ClassVar[int]
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    SECURE_FIELD_NUMBER: _ClassVar[int]
    DP_FIELD_NUMBER: _ClassVar[int]
    STUDY_CARD_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    study: str
    round: int
    round_count: int
    phase: str
    method: str
    settings_json: str
    model: ModelSpec
    image: ImageForm
    augmentation: Augmentation
    numerics: Numerics
    payloads: _containers.RepeatedCompositeFieldContainer[_tensors_pb2.PayloadReference]
    last_folded_round: int
    seed: int
    deadline_time: _timestamp_pb2.Timestamp
    report_interval: _duration_pb2.Duration
    uplink: Uplink
    model_round: int
    measure: str
    secure: _secure_aggregation_pb2.SecureTask
    dp: DifferentialPrivacy
    study_card: bytes
    model_digest: bytes
    def __init__(self, task_id: _Optional[str] = ..., study: _Optional[str] = ..., round: _Optional[int] = ..., round_count: _Optional[int] = ..., phase: _Optional[str] = ..., method: _Optional[str] = ..., settings_json: _Optional[str] = ..., model: _Optional[_Union[ModelSpec, _Mapping]] = ..., image: _Optional[_Union[ImageForm, _Mapping]] = ..., augmentation: _Optional[_Union[Augmentation, _Mapping]] = ..., numerics: _Optional[_Union[Numerics, _Mapping]] = ..., payloads: _Optional[_Iterable[_Union[_tensors_pb2.PayloadReference, _Mapping]]] = ..., last_folded_round: _Optional[int] = ..., seed: _Optional[int] = ..., deadline_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., report_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., uplink: _Optional[_Union[Uplink, _Mapping]] = ..., model_round: _Optional[int] = ..., measure: _Optional[str] = ..., secure: _Optional[_Union[_secure_aggregation_pb2.SecureTask, _Mapping]] = ..., dp: _Optional[_Union[DifferentialPrivacy, _Mapping]] = ..., study_card: _Optional[bytes] = ..., model_digest: _Optional[bytes] = ...) -> None: ...

class DifferentialPrivacy(_message.Message):
    __slots__ = ("unit", "noise_multiplier", "target_epsilon", "clip_norm", "delta", "honest_silos")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    NOISE_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    TARGET_EPSILON_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    HONEST_SILOS_FIELD_NUMBER: _ClassVar[int]
    unit: str
    noise_multiplier: float
    target_epsilon: float
    clip_norm: float
    delta: float
    honest_silos: int
    def __init__(self, unit: _Optional[str] = ..., noise_multiplier: _Optional[float] = ..., target_epsilon: _Optional[float] = ..., clip_norm: _Optional[float] = ..., delta: _Optional[float] = ..., honest_silos: _Optional[int] = ...) -> None: ...

class Uplink(_message.Message):
    __slots__ = ("aim", "values", "top_k", "rounding", "error_feedback")
    AIM_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    ROUNDING_FIELD_NUMBER: _ClassVar[int]
    ERROR_FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    aim: str
    values: str
    top_k: float
    rounding: str
    error_feedback: bool
    def __init__(self, aim: _Optional[str] = ..., values: _Optional[str] = ..., top_k: _Optional[float] = ..., rounding: _Optional[str] = ..., error_feedback: bool = ...) -> None: ...

class ModelSpec(_message.Message):
    __slots__ = ("name", "classes", "normalisation", "factory_sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    NORMALISATION_FIELD_NUMBER: _ClassVar[int]
    FACTORY_SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    classes: _containers.RepeatedScalarFieldContainer[str]
    normalisation: str
    factory_sha256: bytes
    def __init__(self, name: _Optional[str] = ..., classes: _Optional[_Iterable[str]] = ..., normalisation: _Optional[str] = ..., factory_sha256: _Optional[bytes] = ...) -> None: ...

class ImageForm(_message.Message):
    __slots__ = ("size", "channels", "mean", "std", "resize", "reading", "standardise")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    RESIZE_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    STANDARDISE_FIELD_NUMBER: _ClassVar[int]
    size: int
    channels: int
    mean: _containers.RepeatedScalarFieldContainer[float]
    std: _containers.RepeatedScalarFieldContainer[float]
    resize: str
    reading: Reading
    standardise: str
    def __init__(self, size: _Optional[int] = ..., channels: _Optional[int] = ..., mean: _Optional[_Iterable[float]] = ..., std: _Optional[_Iterable[float]] = ..., resize: _Optional[str] = ..., reading: _Optional[_Union[Reading, _Mapping]] = ..., standardise: _Optional[str] = ...) -> None: ...

class Reading(_message.Message):
    __slots__ = ("window", "window_centre", "window_width", "window_number", "frames", "axis", "slices")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    WINDOW_CENTRE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_WIDTH_FIELD_NUMBER: _ClassVar[int]
    WINDOW_NUMBER_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    AXIS_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    window: str
    window_centre: float
    window_width: float
    window_number: int
    frames: str
    axis: str
    slices: str
    def __init__(self, window: _Optional[str] = ..., window_centre: _Optional[float] = ..., window_width: _Optional[float] = ..., window_number: _Optional[int] = ..., frames: _Optional[str] = ..., axis: _Optional[str] = ..., slices: _Optional[str] = ...) -> None: ...

class Augmentation(_message.Message):
    __slots__ = ("policy", "horizontal_flip", "vertical_flip", "without")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    HORIZONTAL_FLIP_FIELD_NUMBER: _ClassVar[int]
    VERTICAL_FLIP_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    policy: str
    horizontal_flip: bool
    vertical_flip: bool
    without: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, policy: _Optional[str] = ..., horizontal_flip: bool = ..., vertical_flip: bool = ..., without: _Optional[_Iterable[str]] = ...) -> None: ...

class Numerics(_message.Message):
    __slots__ = ("threads", "deterministic", "precision", "memory_format")
    THREADS_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FORMAT_FIELD_NUMBER: _ClassVar[int]
    threads: int
    deterministic: bool
    precision: str
    memory_format: str
    def __init__(self, threads: _Optional[int] = ..., deterministic: bool = ..., precision: _Optional[str] = ..., memory_format: _Optional[str] = ...) -> None: ...

class DownloadPayloadRequest(_message.Message):
    __slots__ = ("task_id", "digest", "offset")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    digest: bytes
    offset: int
    def __init__(self, task_id: _Optional[str] = ..., digest: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class DownloadPayloadResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: _tensors_pb2.Chunk
    def __init__(self, chunk: _Optional[_Union[_tensors_pb2.Chunk, _Mapping]] = ...) -> None: ...

class ReportProgressRequest(_message.Message):
    __slots__ = ("task_id", "stage", "fraction", "text")
    class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STAGE_UNSPECIFIED: _ClassVar[ReportProgressRequest.Stage]
        STAGE_DOWNLOADING: _ClassVar[ReportProgressRequest.Stage]
        STAGE_TRAINING: _ClassVar[ReportProgressRequest.Stage]
        STAGE_UPLOADING: _ClassVar[ReportProgressRequest.Stage]
    STAGE_UNSPECIFIED: ReportProgressRequest.Stage
    STAGE_DOWNLOADING: ReportProgressRequest.Stage
    STAGE_TRAINING: ReportProgressRequest.Stage
    STAGE_UPLOADING: ReportProgressRequest.Stage
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    stage: ReportProgressRequest.Stage
    fraction: float
    text: str
    def __init__(self, task_id: _Optional[str] = ..., stage: _Optional[_Union[ReportProgressRequest.Stage, str]] = ..., fraction: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class ReportProgressResponse(_message.Message):
    __slots__ = ("abort", "reason")
    ABORT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    abort: bool
    reason: str
    def __init__(self, abort: bool = ..., reason: _Optional[str] = ...) -> None: ...

class BeginUpdateRequest(_message.Message):
    __slots__ = ("task_id", "update_id", "update", "abstention", "refusal", "secure")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    UPDATE_ID_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    ABSTENTION_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    SECURE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    update_id: str
    update: UpdateDeclaration
    abstention: Abstention
    refusal: Refusal
    secure: _secure_aggregation_pb2.SecureAnswer
    def __init__(self, task_id: _Optional[str] = ..., update_id: _Optional[str] = ..., update: _Optional[_Union[UpdateDeclaration, _Mapping]] = ..., abstention: _Optional[_Union[Abstention, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., secure: _Optional[_Union[_secure_aggregation_pb2.SecureAnswer, _Mapping]] = ...) -> None: ...

class UpdateDeclaration(_message.Message):
    __slots__ = ("payload", "manifest", "example_count", "metrics", "training_duration")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    EXAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_DURATION_FIELD_NUMBER: _ClassVar[int]
    payload: _tensors_pb2.PayloadReference
    manifest: _tensors_pb2.PayloadManifest
    example_count: int
    metrics: _containers.ScalarMap[str, float]
    training_duration: _duration_pb2.Duration
    def __init__(self, payload: _Optional[_Union[_tensors_pb2.PayloadReference, _Mapping]] = ..., manifest: _Optional[_Union[_tensors_pb2.PayloadManifest, _Mapping]] = ..., example_count: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., training_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Abstention(_message.Message):
    __slots__ = ("reason", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    REASON_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, reason: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "text", "against")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    AGAINST_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    against: str
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ..., against: _Optional[str] = ...) -> None: ...

class BeginUpdateResponse(_message.Message):
    __slots__ = ("state", "resume_offset", "reason")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[BeginUpdateResponse.State]
        STATE_SEND: _ClassVar[BeginUpdateResponse.State]
        STATE_HAVE: _ClassVar[BeginUpdateResponse.State]
        STATE_REFUSED: _ClassVar[BeginUpdateResponse.State]
    STATE_UNSPECIFIED: BeginUpdateResponse.State
    STATE_SEND: BeginUpdateResponse.State
    STATE_HAVE: BeginUpdateResponse.State
    STATE_REFUSED: BeginUpdateResponse.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESUME_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    state: BeginUpdateResponse.State
    resume_offset: int
    reason: str
    def __init__(self, state: _Optional[_Union[BeginUpdateResponse.State, str]] = ..., resume_offset: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class SubmitUpdateRequest(_message.Message):
    __slots__ = ("update_id", "chunk")
    UPDATE_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    update_id: str
    chunk: _tensors_pb2.Chunk
    def __init__(self, update_id: _Optional[str] = ..., chunk: _Optional[_Union[_tensors_pb2.Chunk, _Mapping]] = ...) -> None: ...

class SubmitUpdateResponse(_message.Message):
    __slots__ = ("update_id", "size_bytes")
    UPDATE_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    update_id: str
    size_bytes: int
    def __init__(self, update_id: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class DescribeStudyRequest(_message.Message):
    __slots__ = ("version", "silo_time")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SILO_TIME_FIELD_NUMBER: _ClassVar[int]
    version: str
    silo_time: _timestamp_pb2.Timestamp
    def __init__(self, version: _Optional[str] = ..., silo_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DescribeStudyResponse(_message.Message):
    __slots__ = ("version", "coordinator_time", "study", "state", "round", "round_count", "method", "settings_json", "model", "image", "uplink", "dense_bytes", "own_rounds", "typical_update_bytes", "typical_round_duration", "round_timeout", "frozen_bytes", "normalisation_image_count", "secure_silo_count", "dp", "masked_update_bytes", "masked_share")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_TIME_FIELD_NUMBER: _ClassVar[int]
    STUDY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUND_COUNT_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    UPLINK_FIELD_NUMBER: _ClassVar[int]
    DENSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OWN_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_UPDATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_ROUND_DURATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    FROZEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    NORMALISATION_IMAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SECURE_SILO_COUNT_FIELD_NUMBER: _ClassVar[int]
    DP_FIELD_NUMBER: _ClassVar[int]
    MASKED_UPDATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MASKED_SHARE_FIELD_NUMBER: _ClassVar[int]
    version: str
    coordinator_time: _timestamp_pb2.Timestamp
    study: str
    state: str
    round: int
    round_count: int
    method: str
    settings_json: str
    model: ModelSpec
    image: ImageForm
    uplink: Uplink
    dense_bytes: int
    own_rounds: _containers.RepeatedCompositeFieldContainer[RoundTraffic]
    typical_update_bytes: int
    typical_round_duration: _duration_pb2.Duration
    round_timeout: _duration_pb2.Duration
    frozen_bytes: int
    normalisation_image_count: int
    secure_silo_count: int
    dp: DifferentialPrivacy
    masked_update_bytes: int
    masked_share: float
    def __init__(self, version: _Optional[str] = ..., coordinator_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., study: _Optional[str] = ..., state: _Optional[str] = ..., round: _Optional[int] = ..., round_count: _Optional[int] = ..., method: _Optional[str] = ..., settings_json: _Optional[str] = ..., model: _Optional[_Union[ModelSpec, _Mapping]] = ..., image: _Optional[_Union[ImageForm, _Mapping]] = ..., uplink: _Optional[_Union[Uplink, _Mapping]] = ..., dense_bytes: _Optional[int] = ..., own_rounds: _Optional[_Iterable[_Union[RoundTraffic, _Mapping]]] = ..., typical_update_bytes: _Optional[int] = ..., typical_round_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., round_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., frozen_bytes: _Optional[int] = ..., normalisation_image_count: _Optional[int] = ..., secure_silo_count: _Optional[int] = ..., dp: _Optional[_Union[DifferentialPrivacy, _Mapping]] = ..., masked_update_bytes: _Optional[int] = ..., masked_share: _Optional[float] = ...) -> None: ...

class RoundTraffic(_message.Message):
    __slots__ = ("round", "payload_down_bytes", "payload_up_bytes", "wire_down_bytes", "wire_up_bytes", "training_duration")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_DOWN_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_UP_BYTES_FIELD_NUMBER: _ClassVar[int]
    WIRE_DOWN_BYTES_FIELD_NUMBER: _ClassVar[int]
    WIRE_UP_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRAINING_DURATION_FIELD_NUMBER: _ClassVar[int]
    round: int
    payload_down_bytes: int
    payload_up_bytes: int
    wire_down_bytes: int
    wire_up_bytes: int
    training_duration: _duration_pb2.Duration
    def __init__(self, round: _Optional[int] = ..., payload_down_bytes: _Optional[int] = ..., payload_up_bytes: _Optional[int] = ..., wire_down_bytes: _Optional[int] = ..., wire_up_bytes: _Optional[int] = ..., training_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DescribeStudyCardRequest(_message.Message):
    __slots__ = ("study", "digest")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    study: str
    digest: bytes
    def __init__(self, study: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class DescribeStudyCardResponse(_message.Message):
    __slots__ = ("card_json",)
    CARD_JSON_FIELD_NUMBER: _ClassVar[int]
    card_json: str
    def __init__(self, card_json: _Optional[str] = ...) -> None: ...

class SignStudyCardRequest(_message.Message):
    __slots__ = ("study", "digest", "signature")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    study: str
    digest: bytes
    signature: bytes
    def __init__(self, study: _Optional[str] = ..., digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SignStudyCardResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeModelRequest(_message.Message):
    __slots__ = ("study",)
    STUDY_FIELD_NUMBER: _ClassVar[int]
    study: str
    def __init__(self, study: _Optional[str] = ...) -> None: ...

class DescribeModelResponse(_message.Message):
    __slots__ = ("digest", "size_bytes", "round", "labels_alone", "measure", "conclusion", "model_digest")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LABELS_ALONE_FIELD_NUMBER: _ClassVar[int]
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    CONCLUSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    size_bytes: int
    round: int
    labels_alone: bool
    measure: str
    conclusion: str
    model_digest: bytes
    def __init__(self, digest: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., round: _Optional[int] = ..., labels_alone: bool = ..., measure: _Optional[str] = ..., conclusion: _Optional[str] = ..., model_digest: _Optional[bytes] = ...) -> None: ...

class DownloadModelRequest(_message.Message):
    __slots__ = ("study", "digest", "offset")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    study: str
    digest: bytes
    offset: int
    def __init__(self, study: _Optional[str] = ..., digest: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class DownloadModelResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: _tensors_pb2.Chunk
    def __init__(self, chunk: _Optional[_Union[_tensors_pb2.Chunk, _Mapping]] = ...) -> None: ...
