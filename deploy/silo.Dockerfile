# syntax=docker/dockerfile:1
# A silo. Build it in the root of the repository:
#   docker build -f deploy/silo.Dockerfile -t semisilo-silo:0.1.0 .
#
# BASE: the image of Python. For builds that stay the same add its digest, as `docker buildx imagetools inspect` prints
#   it: --build-arg BASE=python:3.12-slim-bookworm@sha256:...
# TORCH_INDEX: a package index to take torch and torchvision from. Empty: the default one, whose builds for Linux bring
#   CUDA along: they run with and without a GPU, and the image has 5 GB. With an index of builds for the CPU, as
#   PyTorch's installation page names it, it has a third of that. The build says which one it has got.
# EXTRAS: formats and tools of pyproject.toml to install as well; "" for none.

ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
ARG TORCH_INDEX=""
ARG EXTRAS="dicom,nifti,onnx,parquet,privacy,tiff,timm"
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
RUN python -m venv /opt/semisilo \
    && PIP_INDEX_URL="${TORCH_INDEX:-$PIP_INDEX_URL}" /opt/semisilo/bin/pip install "torch>=2.7" "torchvision>=0.22" \
    && /opt/semisilo/bin/python -c "import torch, torchvision; print('torch', torch.__version__, 'for CUDA' if torch.version.cuda else 'for the CPU')"
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY common common
COPY coordinator coordinator
COPY silo silo
COPY semisilo semisilo
COPY deploy/alive.sh alive.sh
# Without pip: nothing is installed in a running container.
RUN /opt/semisilo/bin/pip install ".${EXTRAS:+[$EXTRAS]}" && /opt/semisilo/bin/pip uninstall --yes pip \
    && install -m 0755 alive.sh /opt/semisilo/bin/semisilo-alive

FROM ${BASE}
LABEL org.opencontainers.image.title="semisilo silo" \
      org.opencontainers.image.description="Trains one image classifier across institutions that keep their images: a hospital" \
      org.opencontainers.image.licenses="Apache-2.0"
# Any user id will do (OpenShift gives each project its own, in group 0): what is written belongs to group 0 as well.
RUN useradd --uid 10001 --gid 0 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin semisilo \
    && install -d -o semisilo -g 0 -m 0770 /silo \
    && install -d /scans
COPY --from=build /opt/semisilo /opt/semisilo
# The root file system may be read-only: all that is written goes to /silo and /tmp. The images are only read.
# SEMISILO_IMAGES: the images while silo.toml names none.
# NVIDIA_*: what NVIDIA's container toolkit brings in, where there is one.
ENV PATH=/opt/semisilo/bin:$PATH HOME=/tmp MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 SEMISILO_HOME=/silo SEMISILO_IMAGES=/scans \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:0
WORKDIR /silo
VOLUME /silo
STOPSIGNAL SIGTERM
# Without a start of Python, which takes a core for a third of a second every time.
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \
    CMD ["semisilo-alive", "silo", "/silo"]
ENTRYPOINT ["silo"]
CMD ["join", "--home", "/silo"]
