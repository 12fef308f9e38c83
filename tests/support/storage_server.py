"""A server that speaks as Google Cloud Storage does, where TensorFlow looks for it.

Run as a program on a host that has `NAMES` as further names of its own. TensorFlow knows the
address of the service by heart, and takes whatever certificates `CURL_CA_BUNDLE` names.
"""

import functools
import http.server
import ssl
import subprocess
import sys
import threading

from gcp_storage_emulator import server
from gcp_storage_emulator.handlers import buckets
from gcp_storage_emulator.storage import Storage

BUCKET = "bucket"
NAMES = ("www.googleapis.com", "storage.googleapis.com")
_read_data = server._read_data


def make_certificate(path):
    """Writes a certificate of `NAMES` and its key into one file."""
    names = ",".join(f"DNS:{name}" for name in NAMES)
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={NAMES[0]}"
    command += f" -keyout {path} -out {path}.certificate -addext subjectAltName={names}"
    subprocess.run(command.split(), check=True, capture_output=True)
    with open(path, "a") as file, open(f"{path}.certificate") as certificate:
        file.write(certificate.read())


def _read_data_of_empty_files(handler, query):
    """The emulator takes an upload of nothing for none."""
    data = _read_data(handler, query)
    return b"" if data is None and query.get("uploadType") == ["media"] else data


class _Handler(server.RequestHandler):
    def parse_request(self):
        # TensorFlow sends both; the encoding counts (RFC 9112, 6.3), and not for the emulator.
        parsed = super().parse_request()
        if parsed and self.headers.get("Transfer-Encoding") == "chunked":
            del self.headers["Content-Length"]
        return parsed


def serve(certificate):
    """Serves one empty bucket for ever, with and without encryption."""
    server._read_data = _read_data_of_empty_files
    storage = Storage(use_memory_fs=True)
    buckets.create_bucket(BUCKET, storage)
    handler = functools.partial(_Handler, storage)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    # The emulator tells uploads to go on without encryption.
    plain = http.server.ThreadingHTTPServer(("", 80), handler)
    threading.Thread(target=plain.serve_forever, daemon=True).start()
    encrypted = http.server.ThreadingHTTPServer(("", 443), handler)
    encrypted.socket = context.wrap_socket(encrypted.socket, server_side=True)
    print("serves", flush=True)
    encrypted.serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1])
