# JupyterHub of zero-to-jupyterhub with our spawner: hub.image in its values.
#   docker build -f images/hub.Dockerfile -t REGISTRY/runai-hub:0.1.0 .
FROM python:3.13-slim AS wheel
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM quay.io/jupyterhub/k8s-hub:4.4.0
USER root
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[kubespawner]" && rm -r /wheels
USER 1000:1000
