-- A ledger that version 0.1.0 wrote before its tables had a second version: `semisilo simulate`, two silos, one round.
BEGIN TRANSACTION;
CREATE TABLE certificate (
    serial TEXT PRIMARY KEY,                -- decimal: larger than SQLite's integers
    silo TEXT NOT NULL,
    issued_unix REAL NOT NULL,
    not_after_unix REAL NOT NULL,
    revoked_unix REAL
) STRICT;
CREATE TABLE cost (
    study TEXT NOT NULL,                    -- '' outside of studies
    round INTEGER NOT NULL,
    phase TEXT NOT NULL,
    silo TEXT NOT NULL,                     -- '' = overhead: bytes that belong to no silo
    direction TEXT NOT NULL CHECK (direction IN ('down', 'up')),
    kind TEXT NOT NULL CHECK (kind IN ('payload', 'message', 'wire')),
    item TEXT NOT NULL,                     -- tensor group for payload, RPC for message, 'tcp' for wire
    bytes INTEGER NOT NULL,
    count INTEGER NOT NULL DEFAULT 0,
    estimated INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO "cost" VALUES('study',1,'train','silo-000','down','payload','model',187602,1,0);
INSERT INTO "cost" VALUES('study',1,'train','silo-000','down','payload','batch_norm',1515,1,0);
INSERT INTO "cost" VALUES('study',1,'train','silo-001','down','payload','model',187602,1,0);
INSERT INTO "cost" VALUES('study',1,'train','silo-001','down','payload','batch_norm',1515,1,0);
INSERT INTO "cost" VALUES('study',1,'train','silo-000','up','payload','model',156610,1,0);
INSERT INTO "cost" VALUES('study',1,'train','silo-000','up','payload','manifest',360,1,0);
INSERT INTO "cost" VALUES('study',1,'train','silo-001','up','payload','model',155053,1,0);
INSERT INTO "cost" VALUES('study',1,'train','silo-001','up','payload','manifest',360,1,0);
CREATE TABLE declared_update (
    update_id TEXT PRIMARY KEY,
    task_id TEXT NOT NULL REFERENCES task(task_id),
    digest TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    groups_json TEXT NOT NULL,              -- group -> encoded bytes
    example_count INTEGER NOT NULL,
    metrics_json TEXT NOT NULL,
    training_seconds REAL NOT NULL,
    declared_unix REAL NOT NULL,
    accepted_unix REAL,
    folded INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO "declared_update" VALUES('d1d109308b8579ff0c1a07ef6f2ab3ca','study/1/0-train/silo-000','67ab4062b0a35de2ee12b045cb61ca9495fe9d129dd13b1c7b16a23565e42a68',156970,'{"model":156610}',66,'{"fix_loss":1.5483067631721497,"label_ratio":1.0,"loss":3.1154891763414656,"mix_loss":1.5671823876244682,"pseudo_label_accuracy":0.07575757575757576,"pseudo_labels/4":50.0,"pseudo_labels/8":16.0,"steps":7.0,"threshold_accuracy":0.07575757575757576}',5.07145399969886057078e-02,1.79526884710477566717e+09,1.79526884720632791524e+09,1);
INSERT INTO "declared_update" VALUES('0d464d7a8af521a315300b5f2bddce3b','study/1/0-train/silo-001','dd079f858a0a809127343c666b5af095eb216d35cc0bbebfe7184879559c344e',155413,'{"model":155053}',66,'{"fix_loss":1.4514882734843664,"label_ratio":1.0,"loss":2.89928890977587,"mix_loss":1.447800636291504,"pseudo_label_accuracy":0.15151515151515152,"pseudo_labels/4":58.0,"pseudo_labels/8":8.0,"steps":7.0,"threshold_accuracy":0.15151515151515152}',3.98459990028641186654e-02,1.79526884710477566717e+09,1.79526884720965504644e+09,1);
CREATE TABLE event (
    number INTEGER PRIMARY KEY,
    unix REAL NOT NULL,
    kind TEXT NOT NULL,
    study TEXT NOT NULL,
    detail_json TEXT NOT NULL,
    chain TEXT NOT NULL                     -- SHA-256 over the previous chain and this row
) STRICT;
INSERT INTO "event" VALUES(1,1.79526884697450780873e+09,'study_queued','study','{"config":{"augmentation":{"horizontal_flip":false,"policy":"small","vertical_flip":false,"without":["Invert","Solarize"]},"data":{"classes":["0","1","2","3","4","5","6","7","8","9"],"image":{"channels":1,"mean":[0.3],"resize":"fit","size":8,"std":[0.4]},"labelled":"data/labelled.npz","on_error":"stop","test":"data/test.npz","validation":"data/validation.npz"},"method":{"name":"semifl","settings":{"aggregation":"alternate","clip_norm":1.0,"confidence_threshold":0.11,"coordinator_epochs":1,"final_epochs":0,"fix_weight":1.0,"global_momentum":0.5,"labelled_batch":10,"labelling":"round","local_epochs":1,"lr":0.02,"mix_weight":1.0,"mixup_a":0.75,"momentum":0.9,"momentum_max_age_rounds":0,"nesterov":true,"persist_local_momentum":true,"round_lr":0.0,"sbn_source":"coordinator","scenario":"labels-at-coordinator","schedule":"cosine","unlabelled_batch":10,"weight_decay":0.0005,"weighting":"uniform"}},"model":{"classes":[],"name":"small_cnn","normalisation":"auto"},"numerics":{"deterministic":true,"threads":1},"participation":{"quorum":0,"round_limit":"2d","round_timeout":"30m","silos_per_round":"100%"},"study":{"baseline_epochs":400,"keep_every":50,"labelled_only_baseline":false,"local_accuracy":false,"rounds":1,"seed":5,"start_with":2},"wire":{"downlink":"auto","error_feedback":true,"rounding":"stochastic","uplink":"auto"}}}','c1bdc2f232577f6ae359ba5a054f467566aab98843a159d5819716d4b66220f4');
INSERT INTO "event" VALUES(2,1.79526884697484827042e+09,'silo_simulated','','{"silo":"silo-000"}','22138867228059fc55e7a916e592d3dd9864c98617c1ec8357ad59d197d641ed');
INSERT INTO "event" VALUES(3,1.79526884697488975524e+09,'silo_simulated','','{"silo":"silo-001"}','24f6117e6cc32b7fbab28cc125be13c764e95dacf5ea0b6e080be26b2348278c');
INSERT INTO "event" VALUES(4,1.79526884697522711754e+09,'silo_joined','','{"labelled_count":0,"silo":"silo-000","unlabelled_count":66,"version":"0.1.0"}','cdbb1c96bf4a1b8dd901fe929fecf7f56462333e1d66d520f5cca652e9f662b0');
INSERT INTO "event" VALUES(5,1795268846.97541,'silo_joined','','{"labelled_count":0,"silo":"silo-001","unlabelled_count":66,"version":"0.1.0"}','0169e1f77b9f4a6ac3a3099dc94621d207a2020aeef6318399d878e880860f6c');
INSERT INTO "event" VALUES(6,1.79526884698975586892e+09,'study_preparing','study','{"reason":""}','da9dcfba1f95aa0c609c9d7d836ba471787a48dd65988fdc514487e1aafadc0e');
INSERT INTO "event" VALUES(7,1.79526884701690793034e+09,'study_frozen','study','{"frozen":{"classes":["0","1","2","3","4","5","6","7","8","9"],"dense_bytes":226216,"image":{"channels":1,"mean":[0.3],"resize":"fit","size":8,"std":[0.4]},"num_labelled":20,"num_parameters":56554,"num_test":355,"num_validation":20,"skipped":[]}}','5a1171cf58772bad52b45e21eee1bb7aaf50190f188a09d7134c7843d4f76c14');
INSERT INTO "event" VALUES(8,1.7952688470170161724e+09,'study_numerics','study','{"numerics":{"cpu_capability":"AVX512","deterministic":true,"device":"cpu","threads":1,"torch":"2.15.0+cu132"}}','e8e566f2bcc6f30cdf9597bb6c60308c53d3f2f53af20002721af8ca4dc3c630');
INSERT INTO "event" VALUES(9,1.79526884701783204082e+09,'round_opened','study','{"round":0,"sample":[]}','655b8c8834028a8facee1c5cb79e8de4cf4f8df6b5fc26771a7b432869dd54a4');
INSERT INTO "event" VALUES(10,1.79526884709208297725e+09,'round_evaluating','study','{"metrics":{"accuracy":0.09014084507042254,"balanced_accuracy":0.08954248366013072,"fine_tune_loss":2.335986375808716,"labelled_accuracy":0.15,"loss":2.3151706319459726,"recall/0":0.0,"recall/1":0.0,"recall/2":0.0,"recall/3":0.0,"recall/4":0.7777777777777778,"recall/5":0.0,"recall/6":0.0,"recall/7":0.0,"recall/8":0.11764705882352941,"recall/9":0.0,"validation_accuracy":0.0},"reason":"","round":0,"state_digest":"31ccd0e40488cba8db2bfebdb403896748febc449c9b1f92902ed0cb1898e158"}','25ecb116e74f219381b829c9c555b4271efebca8648ae35dd4df1b2177e16f1c');
INSERT INTO "event" VALUES(11,1.79526884709236693384e+09,'round_completed','study','{"metrics":{"accuracy":0.09014084507042254,"balanced_accuracy":0.08954248366013072,"fine_tune_loss":2.335986375808716,"labelled_accuracy":0.15,"loss":2.3151706319459726,"recall/0":0.0,"recall/1":0.0,"recall/2":0.0,"recall/3":0.0,"recall/4":0.7777777777777778,"recall/5":0.0,"recall/6":0.0,"recall/7":0.0,"recall/8":0.11764705882352941,"recall/9":0.0,"validation_accuracy":0.0},"reason":"","round":0,"state_digest":""}','00a2db09f5d6de2c0a5530cb7d32e3590d76142a5ec7b72abbb8c66f07269497');
INSERT INTO "event" VALUES(12,1.79526884709301638599e+09,'study_waiting','study','{"reason":""}','2f28240b40a44895a27e1cff40bb6785614d618f445b80157b99adb583eec29d');
INSERT INTO "event" VALUES(13,1.79526884709356141086e+09,'study_running','study','{"reason":""}','6a109d7483590a97e32da04cb00896da26eb3d6f9645f20ddb885883bc4d94c8');
INSERT INTO "event" VALUES(14,1.79526884709499192239e+09,'round_opened','study','{"round":1,"sample":["silo-000","silo-001"]}','071650cbc3da3f0366b7d7028ace48486837bb1136d44e47a6ffa43d849ddf10');
INSERT INTO "event" VALUES(15,1.7952688471037523746e+09,'round_collecting','study','{"metrics":{},"reason":"","round":1,"state_digest":""}','3a37fd45d0d1c53851440a1ae4048b62ac399550b074de0e4a4920daec625af5');
INSERT INTO "event" VALUES(16,1.79526884720651125912e+09,'task_updated','study','{"metrics":{"fix_loss":1.5483067631721497,"label_ratio":1.0,"loss":3.1154891763414656,"mix_loss":1.5671823876244682,"pseudo_label_accuracy":0.07575757575757576,"pseudo_labels/4":50.0,"pseudo_labels/8":16.0,"steps":7.0,"threshold_accuracy":0.07575757575757576},"reason":"","round":1,"silo":"silo-000","update_id":"d1d109308b8579ff0c1a07ef6f2ab3ca"}','d37d8efe043717ef3a4db3f720d6cad859c0ed960f53bbc4efb9512695a7ca54');
INSERT INTO "event" VALUES(17,1.79526884720974063878e+09,'task_updated','study','{"metrics":{"fix_loss":1.4514882734843664,"label_ratio":1.0,"loss":2.89928890977587,"mix_loss":1.447800636291504,"pseudo_label_accuracy":0.15151515151515152,"pseudo_labels/4":58.0,"pseudo_labels/8":8.0,"steps":7.0,"threshold_accuracy":0.15151515151515152},"reason":"","round":1,"silo":"silo-001","update_id":"0d464d7a8af521a315300b5f2bddce3b"}','6cbf457baf3305840dd10a78e584fcd06983697881a6b615e17a9ab766fe010d');
INSERT INTO "event" VALUES(18,1.79526884721035647398e+09,'round_aggregating','study','{"metrics":{},"reason":"","round":1,"state_digest":""}','639d9c1f830db225bf6fdae90d60a1bf95b1b04045be15f8fd126cbb5d3dc979');
INSERT INTO "event" VALUES(19,1795268847.23267,'round_evaluating','study','{"metrics":{},"reason":"","round":1,"state_digest":"2279d943fbd2aa06885ed1810c6dfa0663757106b95d5c543275dd5587544c05"}','44a2b8f0ec01e91f77fc27b45f24c0426ba8258edaf06c6f75dae899be257591');
INSERT INTO "event" VALUES(20,1.79526884727192735666e+09,'round_completed','study','{"metrics":{"accuracy":0.10140845070422536,"balanced_accuracy":0.1,"fine_tune_loss":2.6812260150909424,"labelled_accuracy":0.1,"loss":2.6036627970950703,"recall/0":0.0,"recall/1":0.0,"recall/2":0.0,"recall/3":0.0,"recall/4":1.0,"recall/5":0.0,"recall/6":0.0,"recall/7":0.0,"recall/8":0.0,"recall/9":0.0,"validation_accuracy":0.05},"reason":"","round":1,"state_digest":""}','25111ce8087d7ef8e3b103fa56008ca2b23821a77d59fe002ddbde87bbdfdb8d');
INSERT INTO "event" VALUES(21,1.79526884727626180647e+09,'study_completed','study','{"reason":""}','df275d3908e3dec3ed13b712b5df43be453ab6d32ecf4b87add1e0f23a3477ae');
CREATE TABLE invitation (
    token_hash BLOB PRIMARY KEY,
    silo TEXT NOT NULL,
    created_unix REAL NOT NULL,
    expires_unix REAL NOT NULL,
    used_unix REAL,
    key_fingerprint BLOB,
    certificate_der BLOB
) STRICT;
CREATE TABLE phase (
    study TEXT NOT NULL,
    round INTEGER NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    quorum INTEGER NOT NULL,
    opened_unix REAL NOT NULL,
    deadline_unix REAL NOT NULL,
    limit_unix REAL NOT NULL,
    closed_unix REAL,
    expects_json TEXT NOT NULL,
    PRIMARY KEY (study, round, number),
    FOREIGN KEY (study, round) REFERENCES round(study, number)
) STRICT;
INSERT INTO "phase" VALUES('study',1,0,'train',1,1.79526884710207867623e+09,1.79527064710207867625e+09,1.79544164710207867618e+09,1.79526884721013903611e+09,'{"model":{"base":"138ea25fb2f311aabd41ddff0e5fabe121747ef68b7eed040565a5a8116aa64c","meaning":"difference","tensors":[{"dtype":"float32","name":"features.0.weight","shape":[32,1,3,3]},{"dtype":"float32","name":"features.1.weight","shape":[32]},{"dtype":"float32","name":"features.1.bias","shape":[32]},{"dtype":"float32","name":"features.4.weight","shape":[64,32,3,3]},{"dtype":"float32","name":"features.5.weight","shape":[64]},{"dtype":"float32","name":"features.5.bias","shape":[64]},{"dtype":"float32","name":"features.7.weight","shape":[64,64,3,3]},{"dtype":"float32","name":"features.8.weight","shape":[64]},{"dtype":"float32","name":"features.8.bias","shape":[64]},{"dtype":"float32","name":"classifier.weight","shape":[10,64]},{"dtype":"float32","name":"classifier.bias","shape":[10]}]}}');
CREATE TABLE round (
    study TEXT NOT NULL REFERENCES study(name),
    number INTEGER NOT NULL,                -- 0 = preparation
    state TEXT NOT NULL,
    phase INTEGER NOT NULL DEFAULT 0,       -- index of the current phase
    phases_json TEXT NOT NULL DEFAULT '[]',
    sample_json TEXT NOT NULL DEFAULT '[]',
    opened_unix REAL NOT NULL,
    closed_unix REAL,
    start_digest TEXT NOT NULL,             -- state file when the round opened; '' for round 0
    state_digest TEXT NOT NULL,             -- state file after the phases done so far; committed when COMPLETED
    metrics_json TEXT NOT NULL DEFAULT '{}',
    reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (study, number)
) STRICT;
INSERT INTO "round" VALUES('study',0,'completed',0,'[]','[]',1.79526884701778364182e+09,1.79526884709233474734e+09,'','31ccd0e40488cba8db2bfebdb403896748febc449c9b1f92902ed0cb1898e158','{"accuracy":0.09014084507042254,"balanced_accuracy":0.08954248366013072,"fine_tune_loss":2.335986375808716,"labelled_accuracy":0.15,"loss":2.3151706319459726,"recall/0":0.0,"recall/1":0.0,"recall/2":0.0,"recall/3":0.0,"recall/4":0.7777777777777778,"recall/5":0.0,"recall/6":0.0,"recall/7":0.0,"recall/8":0.11764705882352941,"recall/9":0.0,"validation_accuracy":0.0}','');
INSERT INTO "round" VALUES('study',1,'completed',0,'[{"asks":"sample","name":"train","quorum":"study"}]','["silo-000","silo-001"]',1.79526884709495639794e+09,1.7952688472719085216e+09,'31ccd0e40488cba8db2bfebdb403896748febc449c9b1f92902ed0cb1898e158','2279d943fbd2aa06885ed1810c6dfa0663757106b95d5c543275dd5587544c05','{"accuracy":0.10140845070422536,"balanced_accuracy":0.1,"fine_tune_loss":2.6812260150909424,"labelled_accuracy":0.1,"loss":2.6036627970950703,"recall/0":0.0,"recall/1":0.0,"recall/2":0.0,"recall/3":0.0,"recall/4":1.0,"recall/5":0.0,"recall/6":0.0,"recall/7":0.0,"recall/8":0.0,"recall/9":0.0,"validation_accuracy":0.05}','');
CREATE TABLE silo (
    name TEXT PRIMARY KEY,
    enrolled_unix REAL NOT NULL,
    revoked_unix REAL,                      -- NULL: not revoked
    joined_unix REAL,                       -- first AwaitTask; NULL: never
    seen_unix REAL,                         -- last RPC
    version TEXT NOT NULL DEFAULT '',
    methods_json TEXT NOT NULL DEFAULT '[]',
    labelled_count INTEGER NOT NULL DEFAULT 0,
    unlabelled_count INTEGER NOT NULL DEFAULT 0,
    memory_study TEXT NOT NULL DEFAULT '',
    memory_round INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO "silo" VALUES('silo-000',1.79526884697481441503e+09,NULL,1.79526884697518301012e+09,1.79526884710498046875e+09,'0.1.0','["semifl"]',0,66,'',0);
INSERT INTO "silo" VALUES('silo-001',1.79526884697488164901e+09,NULL,1.79526884697539448735e+09,1.79526884716112518315e+09,'0.1.0','["semifl"]',0,66,'',0);
CREATE TABLE silo_state (
    study TEXT NOT NULL,
    silo TEXT NOT NULL,
    last_folded_round INTEGER NOT NULL DEFAULT 0,
    kept_digest TEXT,                       -- state file of what the strategy keeps for this silo
    pending_round INTEGER,                  -- folded, but the round is not committed yet
    pending_kept_digest TEXT,
    PRIMARY KEY (study, silo)
) STRICT;
INSERT INTO "silo_state" VALUES('study','silo-000',1,NULL,NULL,NULL);
INSERT INTO "silo_state" VALUES('study','silo-001',1,NULL,NULL,NULL);
CREATE TABLE study (
    name TEXT PRIMARY KEY,
    position INTEGER NOT NULL UNIQUE,       -- order in the queue
    state TEXT NOT NULL,
    config_json TEXT NOT NULL,              -- frozen when queued
    frozen_json TEXT,                       -- what is measured when it starts
    numerics_json TEXT,
    baseline_json TEXT,                     -- the labelled-only line
    queued_unix REAL NOT NULL,
    started_unix REAL,
    ended_unix REAL,
    reason TEXT NOT NULL DEFAULT ''
) STRICT;
INSERT INTO "study" VALUES('study',1,'completed','{"augmentation":{"horizontal_flip":false,"policy":"small","vertical_flip":false,"without":["Invert","Solarize"]},"data":{"classes":["0","1","2","3","4","5","6","7","8","9"],"image":{"channels":1,"mean":[0.3],"resize":"fit","size":8,"std":[0.4]},"labelled":"data/labelled.npz","on_error":"stop","test":"data/test.npz","validation":"data/validation.npz"},"method":{"name":"semifl","settings":{"aggregation":"alternate","clip_norm":1.0,"confidence_threshold":0.11,"coordinator_epochs":1,"final_epochs":0,"fix_weight":1.0,"global_momentum":0.5,"labelled_batch":10,"labelling":"round","local_epochs":1,"lr":0.02,"mix_weight":1.0,"mixup_a":0.75,"momentum":0.9,"momentum_max_age_rounds":0,"nesterov":true,"persist_local_momentum":true,"round_lr":0.0,"sbn_source":"coordinator","scenario":"labels-at-coordinator","schedule":"cosine","unlabelled_batch":10,"weight_decay":0.0005,"weighting":"uniform"}},"model":{"classes":[],"name":"small_cnn","normalisation":"auto"},"numerics":{"deterministic":true,"threads":1},"participation":{"quorum":0,"round_limit":"2d","round_timeout":"30m","silos_per_round":"100%"},"study":{"baseline_epochs":400,"keep_every":50,"labelled_only_baseline":false,"local_accuracy":false,"rounds":1,"seed":5,"start_with":2},"wire":{"downlink":"auto","error_feedback":true,"rounding":"stochastic","uplink":"auto"}}','{"classes":["0","1","2","3","4","5","6","7","8","9"],"dense_bytes":226216,"image":{"channels":1,"mean":[0.3],"resize":"fit","size":8,"std":[0.4]},"num_labelled":20,"num_parameters":56554,"num_test":355,"num_validation":20,"skipped":[]}','{"cpu_capability":"AVX512","deterministic":true,"device":"cpu","threads":1,"torch":"2.15.0+cu132"}',NULL,1.79526884697443914412e+09,1.7952688469896631241e+09,1.79526884727615332606e+09,'');
CREATE TABLE task (
    task_id TEXT PRIMARY KEY,
    study TEXT NOT NULL,
    round INTEGER NOT NULL,
    phase INTEGER NOT NULL,
    silo TEXT NOT NULL,
    state TEXT NOT NULL,
    spec_json TEXT NOT NULL,
    opened_unix REAL NOT NULL,
    given_unix REAL,                        -- first time the silo was told
    closed_unix REAL,
    update_id TEXT,                         -- the accepted outcome
    reason TEXT NOT NULL DEFAULT '',
    metrics_json TEXT NOT NULL DEFAULT '{}',
    UNIQUE (study, round, phase, silo)
) STRICT;
INSERT INTO "task" VALUES('study/1/0-train/silo-000','study',1,0,'silo-000','updated','{"augmentation":{"horizontal_flip":false,"policy":"small","vertical_flip":false,"without":["Invert","Solarize"]},"deadline_unix":1795270647.1020787,"image":{"channels":1,"mean":[0.3],"resize":"fit","size":8,"std":[0.4]},"last_folded_round":0,"method":"semifl","model":{"classes":["0","1","2","3","4","5","6","7","8","9"],"name":"small_cnn","normalisation":"auto"},"numerics":{"deterministic":true,"threads":1},"payloads":[{"digest":"24f349a64388405cef2c641c1e20fd7da43275ba91a372579db0a4ce818e0431","groups":["model"],"reference":"","size_bytes":187602,"tensors":"138ea25fb2f311aabd41ddff0e5fabe121747ef68b7eed040565a5a8116aa64c"},{"digest":"d36d97dc3128776537d4b6f2071b2af5751a41223ada6cd22da6d7877ec47834","groups":["batch_norm"],"reference":"","size_bytes":1515,"tensors":"fdd15a736193a0e01a77e97991d367e212532a10a6b6bab3aad81e6fca336b3c"}],"phase":"train","round":1,"rounds":1,"seed":5,"settings":{"aggregation":"alternate","clip_norm":1.0,"confidence_threshold":0.11,"coordinator_epochs":1,"final_epochs":0,"fix_weight":1.0,"global_momentum":0.5,"labelled_batch":10,"labelling":"round","local_epochs":1,"lr":0.02,"mix_weight":1.0,"mixup_a":0.75,"momentum":0.9,"momentum_max_age_rounds":0,"nesterov":true,"persist_local_momentum":true,"round_lr":0.02,"sbn_source":"coordinator","scenario":"labels-at-coordinator","schedule":"cosine","unlabelled_batch":10,"weight_decay":0.0005,"weighting":"uniform"},"silo":"silo-000","study":"study","task_id":"study/1/0-train/silo-000","uplink":{"aim":"auto","error_feedback":true,"rounding":"stochastic","top_k":1.0,"values":"exact"}}',1.79526884710207867623e+09,1.79526884710537552834e+09,1.79526884720640325546e+09,'d1d109308b8579ff0c1a07ef6f2ab3ca','','{"fix_loss":1.5483067631721497,"label_ratio":1.0,"loss":3.1154891763414656,"mix_loss":1.5671823876244682,"pseudo_label_accuracy":0.07575757575757576,"pseudo_labels/4":50.0,"pseudo_labels/8":16.0,"steps":7.0,"threshold_accuracy":0.07575757575757576}');
INSERT INTO "task" VALUES('study/1/0-train/silo-001','study',1,0,'silo-001','updated','{"augmentation":{"horizontal_flip":false,"policy":"small","vertical_flip":false,"without":["Invert","Solarize"]},"deadline_unix":1795270647.1020787,"image":{"channels":1,"mean":[0.3],"resize":"fit","size":8,"std":[0.4]},"last_folded_round":0,"method":"semifl","model":{"classes":["0","1","2","3","4","5","6","7","8","9"],"name":"small_cnn","normalisation":"auto"},"numerics":{"deterministic":true,"threads":1},"payloads":[{"digest":"24f349a64388405cef2c641c1e20fd7da43275ba91a372579db0a4ce818e0431","groups":["model"],"reference":"","size_bytes":187602,"tensors":"138ea25fb2f311aabd41ddff0e5fabe121747ef68b7eed040565a5a8116aa64c"},{"digest":"d36d97dc3128776537d4b6f2071b2af5751a41223ada6cd22da6d7877ec47834","groups":["batch_norm"],"reference":"","size_bytes":1515,"tensors":"fdd15a736193a0e01a77e97991d367e212532a10a6b6bab3aad81e6fca336b3c"}],"phase":"train","round":1,"rounds":1,"seed":5,"settings":{"aggregation":"alternate","clip_norm":1.0,"confidence_threshold":0.11,"coordinator_epochs":1,"final_epochs":0,"fix_weight":1.0,"global_momentum":0.5,"labelled_batch":10,"labelling":"round","local_epochs":1,"lr":0.02,"mix_weight":1.0,"mixup_a":0.75,"momentum":0.9,"momentum_max_age_rounds":0,"nesterov":true,"persist_local_momentum":true,"round_lr":0.02,"sbn_source":"coordinator","scenario":"labels-at-coordinator","schedule":"cosine","unlabelled_batch":10,"weight_decay":0.0005,"weighting":"uniform"},"silo":"silo-001","study":"study","task_id":"study/1/0-train/silo-001","uplink":{"aim":"auto","error_feedback":true,"rounding":"stochastic","top_k":1.0,"values":"exact"}}',1.79526884710207867623e+09,1.79526884716143918033e+09,1.79526884720966792103e+09,'0d464d7a8af521a315300b5f2bddce3b','','{"fix_loss":1.4514882734843664,"label_ratio":1.0,"loss":2.89928890977587,"mix_loss":1.447800636291504,"pseudo_label_accuracy":0.15151515151515152,"pseudo_labels/4":58.0,"pseudo_labels/8":8.0,"steps":7.0,"threshold_accuracy":0.15151515151515152}');
CREATE INDEX cost_by_round ON cost (study, round, kind);
CREATE INDEX task_by_round ON task (study, round, phase);
CREATE TRIGGER event_is_append_only_1 BEFORE UPDATE ON event BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER event_is_append_only_2 BEFORE DELETE ON event BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
COMMIT;