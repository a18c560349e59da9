# The command line on the CPU and the simulators:
#   docker build --tag headwater .
#   docker run --rm --volume "$PWD:/job" headwater migrate examples/digits-vit
FROM rust:1.95-slim AS build
# Version control is no part of the context: docker build --build-arg REVISION="$(git rev-parse --short=12 HEAD)"
ARG REVISION
WORKDIR /source
COPY . .
RUN if [ -n "$REVISION" ]; then export HEADWATER_REVISION="$REVISION"; fi; \
    cargo build --release --locked -p headwater --bin headwater

# glibc, so that MPI and vendors' libraries that are mounted or installed can be opened.
FROM debian:stable-slim
COPY --from=build /source/target/release/headwater /usr/local/bin/headwater
COPY --from=build /source/LICENSE /usr/share/doc/headwater/LICENSE
WORKDIR /job
ENTRYPOINT ["headwater"]
