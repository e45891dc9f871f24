# phyla, for its service and for workers. Studies need more: derive an image from this one, with your framework and
# your study file, or build it with other extras: docker build --build-arg EXTRAS=postgres,s3,torch .
FROM python:3.11-slim AS build
ARG EXTRAS=postgres,server,s3
WORKDIR /source
COPY pyproject.toml README.md constraints.txt ./
COPY src src
# pip compiles everything: the user below may not write there, so each process would compile what it imports.
RUN python -m venv /opt/phyla \
    && /opt/phyla/bin/pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"

FROM python:3.11-slim
COPY --from=build /opt/phyla /opt/phyla
# A volume that is mounted at one of these belongs to the user, too.
RUN useradd --uid 1000 phyla && install --directory --owner=1000 --group=1000 --mode=700 /phyla /secrets
ENV PATH=/opt/phyla/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PHYLA_HOME=/phyla
USER 1000:1000
WORKDIR /app
ENTRYPOINT ["phyla"]
CMD ["--help"]
