# statewise on a CPU. Versions are those of constraints.txt; torch comes from the folder `wheels` if it holds a wheel.
#   docker build -t statewise .
#   docker run --rm -v "$PWD/runs:/work/runs" statewise train path-star-tiny --out runs/tiny
# The torch wheel of the default index brings CUDA (several GB): put a CPU wheel into `wheels` for a small image.
FROM python:3.12-slim AS build
WORKDIR /source
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
COPY LICENSE wheel[s] wheels/
RUN python -m venv /opt/statewise \
    && /opt/statewise/bin/pip install --no-cache-dir --find-links wheels -c constraints.txt ".[serve,planning]"

FROM python:3.12-slim
COPY --from=build /opt/statewise /opt/statewise
RUN useradd --create-home --uid 1000 statewise && install -d -o statewise /work
USER 1000
WORKDIR /work
ENV PATH=/opt/statewise/bin:$PATH PYTHONUNBUFFERED=1
ENTRYPOINT ["statewise"]
CMD ["--help"]
