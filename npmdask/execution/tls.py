"""TLS between Dask's processes: to a cluster with certificates of files, among our own workers with one made for them.

Anyone who reaches a scheduler can run code on its workers and, as what they answer is unpickled, in its clients.
Without certificates on both sides an address is the only border, and on a machine that others use 127.0.0.1 is none.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from npmdask.errors import BadInputError, RefusedError, extra
from npmdask.storage.chunk_access import first_line

CA, CERT, KEY = "ca.pem", "cert.pem", "key.pem"
TLS = "tls://"
HOW = (
    f"set run.certificates (--certificates) to a folder with {CA}, {CERT} and {KEY}, or Dask's own "
    "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ..__TLS__CLIENT__CERT and ..__TLS__CLIENT__KEY in the environment"
)


def security_of(address: str, certificates: str | None) -> Any:
    """What a client shows the scheduler at ``address``; None of one that is not spoken to through TLS.

    ``certificates``: a folder with ca.pem (who signs the certificates of all), cert.pem and key.pem; without it what
    Dask's configuration says.

    Raises
    ------
    BadInputError
        There are none for ``tls://``, some for another address, or they are no certificates.
    RefusedError
        The key can be read by others.
    """
    from distributed import Security

    if not address.startswith(TLS):
        if certificates is not None:
            raise BadInputError(
                f"certificates are given ({certificates}), but {address} would be used without encryption: write "
                f"{TLS}{address.rpartition('://')[2]}, or leave run.certificates out"
            )
        return None
    security = Security(require_encryption=True) if certificates is None else _of_files(Path(certificates))
    if not (security.tls_ca_file and security.tls_client_cert):
        raise BadInputError(
            f"{address} uses TLS, but there are no certificates for it: {HOW}; or give a client or cluster object "
            "that has them"
        )
    try:
        security.get_connection_args("client")
    except (OSError, ValueError) as error:  # of ssl, too
        raise BadInputError(f"the certificates for {address} cannot be used ({error}): {HOW}") from error
    return security


def among_ourselves() -> Any:
    """For a scheduler and workers that this process starts: a certificate that is made now, for them, in memory.

    Raises
    ------
    MissingExtraError
        cryptography is not installed, without which none can be made.
    """
    from distributed import Security

    with extra(None):  # else distributed raises a bare ImportError
        import cryptography.x509  # noqa: F401
    return Security.temporary()


def _of_files(folder: Path) -> Any:
    from distributed import Security

    missing = [name for name in (CA, CERT, KEY) if not (folder / name).is_file()]
    if missing:
        raise BadInputError(f"{folder} has no {' and no '.join(missing)}; {HOW}")
    if (folder / KEY).stat().st_mode & 0o077:
        raise RefusedError(
            f"the key {folder / KEY} can be read by other users, who can use it to run code on the cluster: if no "
            "one has read it, `chmod 600` it"
        )
    files = {"tls_ca_file": CA, "tls_client_cert": CERT, "tls_client_key": KEY}
    return Security(require_encryption=True, **{name: str(folder / file) for name, file in files.items()})


def refusal(address: str, error: BaseException) -> str:
    """What to say then."""
    return (
        f"the scheduler at {address} does not accept our certificate, or shows none that our {CA} has signed "
        f"({first_line(error)}): take the {CA}, {CERT} and {KEY} of the operator who runs it"
    )


def refused(error: BaseException) -> bool:
    """Whether a connection that failed got as far as the certificates."""
    while error is not None:
        if isinstance(error, ssl.SSLError) or "SSL" in str(error):
            return True
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return False
