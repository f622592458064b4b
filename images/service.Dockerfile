# The service and its agent: the same image, as the chart starts it (helm/).
#   docker build -f images/service.Dockerfile -t REGISTRY/jupyter-runai:0.1.0 .
FROM python:3.13-slim AS wheel
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.13-slim
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[service,kubernetes,postgresql]" && rm -r /wheels
USER 1000:1000
CMD ["python", "-P", "-s", "-m", "runai.hub_service.server.container_entrypoint"]
