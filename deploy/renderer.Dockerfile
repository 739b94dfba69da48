# The renderer, CPU only, for linux/amd64 and linux/arm64. From the repository's root:
#
#   docker buildx build --load -f deploy/renderer.Dockerfile -t trnrt-renderer .
#   docker run --rm --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges -p 30000:30000 \
#     -v renderer-cache:/home/trnrt/.cache/huggingface -e HF_TOKEN trnrt-renderer MODEL --engine-url http://ENGINE:30001
#
# Every path in a RUN line is a variable, so that tests/deploy can run the same lines in a folder, without an engine.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG PREFIX=/opt/trnrt
ARG TRNRT_HOME=/home/trnrt
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# The packages are a layer of their own, made anew only when these two files change. The environment has no pip.
COPY pyproject.toml constraints.txt ./
RUN python -m venv --without-pip "$PREFIX" \
    && python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
      > requirements.txt \
    && python -m pip --python "$PREFIX/bin/python" install --constraint constraints.txt --requirement requirements.txt
COPY README.md LICENSE ./
COPY graphs/ graphs/
COPY stages/ stages/
COPY trnrt/ trnrt/
RUN python -m pip --python "$PREFIX/bin/python" install --no-deps . \
    && mkdir -p "$TRNRT_HOME/.cache/huggingface"

FROM ${PYTHON_IMAGE}
ARG PREFIX=/opt/trnrt
ARG TRNRT_HOME=/home/trnrt
COPY --from=build ${PREFIX} ${PREFIX}
COPY --from=build --chown=65532:65532 ${TRNRT_HOME} ${TRNRT_HOME}
# Settings by environment, which flags beat; the health check reads the same ones.
ENV PATH=${PREFIX}/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=${TRNRT_HOME} \
    HF_HOME=${TRNRT_HOME}/.cache/huggingface \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TRNRT_HOST=0.0.0.0 \
    TRNRT_PORT=30000
USER 65532:65532
WORKDIR ${TRNRT_HOME}
VOLUME ["/home/trnrt/.cache/huggingface"]
EXPOSE 30000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-m", "trnrt.probe", "/_sglang_renderer/ready"]
ENTRYPOINT ["trnrt", "render"]
