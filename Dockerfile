# One image for every role of a cluster: `python -m launch.node --role=...` (docs/adr/0007).
#   podman build -t antiphon .                     CPU, the default
#   podman build -t antiphon-gpu --target gpu .    the same with CUDA for JAX, for learners and accelerated actors
# Layers, from the one that changes least: Debian and Python, tini, the packages of requirements.lock, the project.

FROM python:3.10-slim-bookworm AS packages
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python3.10 -m venv --without-pip /opt/venv
COPY pyproject.toml requirements.lock scripts/runtime_requirements.py ./
# What is removed are headers, tests and static libraries: nothing that is loaded. Bytecode stays: a node that had to
# compile a gigabyte of Python at each start would take half a minute longer.
RUN python3.10 runtime_requirements.py pyproject.toml requirements.lock > runtime.lock \
 && python3.10 -m pip --python /opt/venv/bin/python install --no-deps --require-hashes -r runtime.lock \
 && rm -rf /opt/venv/lib/python3.10/site-packages/tensorflow/include \
 && find /opt/venv -type d \( -name tests -o -name testdata \) -prune -exec rm -rf {} + \
 && find /opt/venv -name '*.a' -delete

# The same with NVIDIA's libraries; the versions that the lock fixes stay as they are.
FROM packages AS packages-gpu
RUN grep -oE '^[a-z0-9.-]+==[^ ]+' runtime.lock > versions.txt \
 && python3.10 -m pip --python /opt/venv/bin/python install --constraint versions.txt 'jax[cuda12]==0.5.3'

FROM python:3.10-slim-bookworm AS base
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* \
 && useradd --uid 1000 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin antiphon \
 && install -d -o antiphon -g antiphon /run/antiphon /var/lib/antiphon
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/antiphon \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    MALLOC_ARENA_MAX=2 \
    MPLCONFIGDIR=/tmp/matplotlib \
    ANTIPHON_RUN_DIRECTORY=/run/antiphon
WORKDIR /opt/antiphon
# PID 1 ignores SIGTERM unless it handles it, and must reap orphans: tini does both. Numbers, so that Kubernetes can see
# that it isn't root.
USER 1000:1000
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["python", "-m", "launch.node", "--help"]

FROM base AS gpu
COPY --from=packages-gpu /opt/venv /opt/venv
COPY . /opt/antiphon/

FROM base AS cpu
COPY --from=packages /opt/venv /opt/venv
COPY . /opt/antiphon/
