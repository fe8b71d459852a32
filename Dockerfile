# ipybox as an MCP server over stdio, for Linux on amd64 and arm64; scripts/docker builds it.
#
#   docker run --interactive --rm --volume "$PWD:/app/workspace" ipybox
#
# It installs the Debian package. Kernel and MCP servers run inside as an unprivileged user, who has
# the host user's uid and gid so that files in the workspace are his. See docs/claude-code.md for
# the sandbox inside the container.
FROM debian:12 AS build
COPY packaging /src/packaging
RUN apt-get update && apt-get build-dep --yes --no-install-recommends /src/packaging \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN /src/scripts/package deb --out /packages

FROM debian:12-slim
COPY --from=build /packages /packages
RUN apt-get update && apt-get install --yes --no-install-recommends \
        /packages/ipybox_*.deb ca-certificates git nodejs npm python3-venv \
    && rm -rf /var/lib/apt/lists/* /packages
RUN python3 -m venv /opt/ipybox \
    && /opt/ipybox/bin/pip install --no-cache-dir --disable-pip-version-check \
        'ipykernel' 'pydantic>=2.7' 'matplotlib'
ARG UID=1000
ARG GID=1000
# The ids may be those of a user that the image has already.
RUN groupadd --non-unique --gid "$GID" ipybox \
    && useradd --non-unique --create-home --uid "$UID" --gid "$GID" ipybox \
    && mkdir --parents /app/workspace \
    && chown "$UID:$GID" /app/workspace
LABEL io.modelcontextprotocol.server.name="io.github.gradion-ai/ipybox-cpp"
ENV IPYBOX_PYTHON=/opt/ipybox/bin/python
USER ipybox
WORKDIR /app/workspace
ENTRYPOINT ["ipybox", "serve", "--workspace", "/app/workspace"]
