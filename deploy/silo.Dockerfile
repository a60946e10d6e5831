# A silo. Build it in the root of the repository:
#   docker build -f deploy/silo.Dockerfile -t semisilo-silo .
#
# TORCH_INDEX: a package index to take torch and torchvision from. Empty: the default one, whose builds for Linux bring
#   CUDA along: they run with and without a GPU, and the image has several GB. With an index of builds for the CPU, as
#   PyTorch's installation page names it, the image is far smaller.

ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ARG TORCH_INDEX=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
RUN python -m venv /opt/semisilo
RUN PIP_INDEX_URL="${TORCH_INDEX:-$PIP_INDEX_URL}" /opt/semisilo/bin/pip install "torch>=2.6" "torchvision>=0.21"
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY common common
COPY coordinator coordinator
COPY silo silo
COPY semisilo semisilo
RUN /opt/semisilo/bin/pip install .

FROM python:${PYTHON}-slim
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp semisilo \
    && install -d -o semisilo -g semisilo -m 0700 /silo \
    && install -d /scans
COPY --from=build /opt/semisilo /opt/semisilo
# The root file system may be read-only: all that is written goes to /silo and /tmp. The images are only read.
ENV PATH=/opt/semisilo/bin:$PATH HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 SEMISILO_HOME=/silo
USER 10001:10001
WORKDIR /silo
VOLUME /silo
STOPSIGNAL SIGTERM
# hadolint ignore=DL3025
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD silo status --home /silo --json | grep -q '"running": true'
ENTRYPOINT ["silo"]
CMD ["join", "--home", "/silo", "--data", "/scans"]
