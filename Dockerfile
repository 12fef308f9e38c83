# The commands, on processors:
#   docker build -t spanbert-tf .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" spanbert-tf quickstart --output quickstart
FROM python:3.11-slim

COPY . /src
# PyTorch, with which `convert` reads .bin and .pt files, without the packages for cards.
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu \
    && pip install --no-cache-dir '/src[convert,onnx,serve,serving]' \
    && rm -rf /src

RUN useradd --create-home user
USER user
WORKDIR /work
ENTRYPOINT ["spanbert-tf"]
CMD ["--help"]
