"""All errors of the project, named by what happened.

A message says what is wrong, where, and what to do about it. The command line prints the message
on one line and ends with the exit code in brackets. A class that is not defined in this module is
followed by its module.

* HierRouterError [1]: base class of all errors that reach a user; never raised itself.
  * InputError [2]: a flag, a file, a dataset or a checkpoint of the user is wrong.
    * UnknownModel [2] (hierrouter.serving.chat): a client asked for a model that is not served.
    * Unroutable [2] (hierrouter.serving.messages): a valid request needs more than a route can do.
  * CacheError [3]: the cache cannot serve the request.
    * NoCache [3]: nothing has been collected in this folder yet.
    * DamagedPart [3]: a part is truncated, altered, renamed or of another format.
    * IncompleteTree [3]: calls, scores or embeddings of the requested tree are missing.
    * CacheLocked [3]: another process is collecting into the cache, or compacting it.
  * Interrupted [130]: the user asked to stop.
    * LeastDrawsMade [130] (hierrouter.collection.adaptive): so far that its trees can be opened.
  * WorldError [1]: disk, memory, a model or a server failed.
    * Outage [1] (hierrouter.engines.generator): the engine of one model cannot be reached.
      * IdentityChange [1] (hierrouter.engines.generator): a model must be identified anew.
    * NoEncoder [1] (hierrouter.engines.encoder_names): an encoder cannot be loaded.
    * CallFailed [1] (hierrouter.serving.models): a live call has no response after all attempts.
    * EncoderDown [1] (hierrouter.serving.decisions): an encoder's server gives no embeddings.

The following classes never reach a user. The engines raise them, and catch them again to decide
whether to try a request once more, to wait, or to store a failure.

* TransientError (hierrouter.engines.endpoint_client): this attempt failed, another one may succeed.
* ServerBusy (hierrouter.engines.endpoint_client): the server takes no requests at the moment.
* Refusal (hierrouter.engines.endpoint_client): the server refuses this prompt for good.
* ReportedError (hierrouter.engines.dialects): a server sends an error with status 200.
* UnusableReply (hierrouter.engines.endpoint): a reply is of another model, or not counted.
* Cancellation (hierrouter.engines.endpoint_client): a request was cancelled while it waited.
* ForbiddenAddress (hierrouter.engines.addresses): a host has an address that must not be called.
* HubError (hierrouter.hub.repository): a commit or files of a repository cannot be had.
* NoConfinement (hierrouter.questions.programs): programs in answers cannot be confined here.
"""

import difflib
import errno
import os
import resource
import stat
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path

FILE_LIBRARIES = ("duckdb", "_duckdb", "pyarrow")  # their errors have no number of the system


class HierRouterError(Exception):
    """Base of every error that this project raises on purpose."""


class InputError(HierRouterError):
    """A flag, a file, a dataset or a checkpoint given by the user is wrong."""


class CacheError(HierRouterError):
    """The cache cannot serve the request."""


class NoCache(CacheError):
    """Nothing has been collected in this folder yet."""


class DamagedPart(CacheError):
    """A part is truncated, altered, renamed or of another format."""


class IncompleteTree(CacheError):
    """Calls, scores or embeddings of the requested tree are missing."""


class CacheLocked(CacheError):
    """Another process is collecting into this cache, or compacting it."""


class Interrupted(HierRouterError):
    """The user asked to stop; everything that was committed is safe."""


class WorldError(HierRouterError):
    """Disk, memory, a model or a server failed; everything that was committed is safe."""


def open_plain(path: Path) -> BufferedReader:
    """Open a regular file to read its bytes.

    Returns:
        The open file; the caller closes it.

    Raises:
        InputError: it is a pipe, a device or another file that is not regular.
        OSError: it cannot be opened.
    """
    # Without O_NONBLOCK, opening a pipe that has no writer would wait forever.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise InputError(f"not a plain file: {path}; give one that is")


def read_small(path: Path, limit: int) -> bytes:
    """Read all bytes of a file that is expected to be small.

    Args:
        path: the file.
        limit: the most bytes that it may have.

    Raises:
        InputError: it is larger than `limit`, or not a regular file.
        OSError: it cannot be opened or read.
    """
    with open_plain(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise InputError(f"larger than {limit:,} bytes: {path}; nothing of that kind is so large")
    return data


def is_out_of_files(error: BaseException) -> bool:
    """Return whether an error, or one that it came from, says that too many files are open.

    Some libraries say so in words alone. A server's words about its own files do not count.
    """
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.errno in (errno.EMFILE, errno.ENFILE):
            return True
        library = type(link).__module__.partition(".")[0]
        opens_files = isinstance(link, OSError | ImportError) or library in FILE_LIBRARIES
        if opens_files and os.strerror(errno.EMFILE) in str(link):
            return True
        link = link.__cause__ or link.__context__
    return False


def require_free_files(error: BaseException) -> None:
    """Tell a limit of open files from what an error says beside that.

    Raises:
        WorldError: it says that too many files are open.
    """
    if is_out_of_files(error):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise WorldError(
            f"too many open files: this process may have {limit:,}; "
            "allow more, for example with `ulimit -n 1024`, and run it again"
        ) from error


def reason_of(error: BaseException, limit: int = 120) -> str:
    """Return an error's message on one line; its class name if the message is empty.

    Args:
        error: the error.
        limit: the most characters of the message; the rest is cut off.
    """
    return " ".join(str(error).split())[:limit] or type(error).__name__


def typed_reason(error: BaseException, limit: int = 120) -> str:
    """Return `reason_of` after the name of the error's class, for errors of third-party code."""
    class_name = type(error).__name__
    reason = reason_of(error, limit)
    return class_name if reason == class_name else f"{class_name}: {reason}"


def suggestion(word: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """Return `did you mean x? ` if a name is similar to `word`, else `known: a, b; `.

    Args:
        word: what the user wrote.
        names: what could have been meant.
        otherwise: text to return instead of the list of all names, if the list would be too long.
    """
    candidates = list(names)
    close_matches = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    if close_matches:
        return f"did you mean {close_matches[0]}? "
    if otherwise is not None:
        return otherwise
    return f"known: {', '.join(candidates)}; "
