# What users' servers run: any image of Jupyter's with the panel, the magics and the runai command added.
#   docker build -f images/notebook.Dockerfile -t REGISTRY/runai-notebook:0.1.0 .
ARG BASE=quay.io/jupyter/pytorch-notebook:cuda12-latest
FROM python:3.13-slim AS wheel
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM ${BASE}
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl
# Every Python keeps within its share of a GPU's memory: in this folder is a sitecustomize that tells PyTorch and others.
COPY --from=wheel /src/hub_service/limits/hook /opt/runai-limits
ENV PYTHONPATH=/opt/runai-limits
