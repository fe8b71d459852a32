# ipybox as an MCP server over stdio, for Linux on amd64 and arm64; scripts/docker builds it.
#
#   docker run --interactive --rm --volume "$PWD:/app/workspace" ipybox
#
# Kernel and MCP servers run inside as an unprivileged user, who has the host user's uid and gid so
# that files in the workspace are his. See docs/claude-code.md for the sandbox inside the container.
FROM debian:12 AS build
RUN apt-get update && apt-get install --yes --no-install-recommends \
        g++ meson ninja-build pkg-config python3 \
        libboost1.81-dev libboost-filesystem1.81-dev libboost-url1.81-dev \
        libfmt-dev libspdlog-dev libssl-dev libcli11-dev libtomlplusplus-dev libseccomp-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
# In one file: the container's program needs no search for plugins.
RUN meson setup /build /src --prefix=/usr --libdir=lib --buildtype=release \
        -Dplugins=builtin -Dtests=false -Dexamples=false -Dwerror=false \
    && meson install -C /build --destdir /installed

FROM debian:12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends \
        bubblewrap ca-certificates git nodejs npm python3 python3-venv \
        libboost-filesystem1.81.0 libboost-url1.81.0 libfmt9 libspdlog1.10 libssl3 libseccomp2 \
    && rm -rf /var/lib/apt/lists/*
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
COPY --from=build /installed/ /
LABEL io.modelcontextprotocol.server.name="io.github.gradion-ai/ipybox-cpp"
ENV IPYBOX_PYTHON=/opt/ipybox/bin/python
USER ipybox
WORKDIR /app/workspace
ENTRYPOINT ["ipybox", "serve", "--workspace", "/app/workspace"]
