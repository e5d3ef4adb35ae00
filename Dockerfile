# Headroom's training program. For the CPU:
#   docker build -t headroom .
# With the CUDA backend, its toolkit fetched as `./dev train --with-cuda-wheels` does:
#   docker build -t headroom-cuda --build-arg CUDA_WHEELS=1 .
#   docker run --rm --gpus all headroom-cuda --model resnet18 --data random:3x32x32:10 --steps 20
FROM debian:12

ARG CUDA_WHEELS=0
# Compile so many files at a time; empty: as many as cores and memory allow.
ARG JOBS=

WORKDIR /headroom
COPY . .
# dev installs the Debian packages that are missing, as on any machine, and builds `train` alone.
RUN HEADROOM_CUDA_WHEELS="$CUDA_WHEELS" HEADROOM_JOBS="$JOBS" ./dev train --version \
    && rm -rf /var/lib/apt/lists/*

# Where dev puts CUDA's libraries; without them the folder does not exist and changes nothing.
ENV LD_LIBRARY_PATH=/headroom/.deps/cuda/lib
ENTRYPOINT ["/headroom/build/release/bin/train"]
