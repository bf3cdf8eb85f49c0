"""Descriptions of parameters that are not fields of a struct: in paths, headers, forms and signatures."""

from __future__ import annotations

from typing import Final

from ingot.identity.grants import RECORD_RESOURCES

# The key is the path segment before the parameter, with the tag of the route where the segment alone is ambiguous.
PATH_PARAMETER_DOCS: Final = {
    "admin/workers": "ID of the worker credential.",
    "batches": "Name of the batch.",
    "blobs": "ID of the blob.",
    "definitions": "Job type.",
    "invitations": "ID of the invitation.",
    "jobs": "ID of the job.",
    "keys": "Key.",
    "members": "ID of the person or of the invitation.",
    "pauses": "Job type.",
    "sessions": "ID of the session.",
    "tenants": "Slug or ID of the tenant.",
    "tokens": "ID of the token.",
    "uploads": "ID of the upload.",
    "users": "ID of the person.",
    **dict.fromkeys(RECORD_RESOURCES, "Name of the record."),
    "workers": "ID of the worker. Send a `/` in it as `%2F`.",
}
REST_PARAMETER_NOTE: Final = (
    " Slashes can be sent as they are or as `%2F`. Percent-encode other characters that are not allowed in a path."
)
SIGNATURE_PARAMETER_DOCS: Final = {
    "expires": "Time when the URL expires, in seconds since 1970.",
    "signature": "Signature of the server over the URL.",
}
FORM_FIELD_DOCS: Final = {
    "blob": "The file. It must be the last field.",
    "key": "Key to set.",
}
HEADER_DOCS: Final = {
    "Idempotency-Key": "Same as the key in the body: requests with the same key are executed once.",
    "If-Match": "ETag of the blob that the key must hold, or `*` for any blob. Required to replace a key.",
    "Ingot-Tenant": "Slug of the tenant, for operators (`default` if not sent) and people (the tenant of the session).",
    "Last-Event-ID": "ID of the last event that was received. The stream continues after it.",
    "Upload-Offset": "Number of bytes of the upload that were sent before. The body continues there.",
}
