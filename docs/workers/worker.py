"""Calls an API for each job: reads jobs from its input, a line of JSON each, and answers each with a line."""

import base64
import http.client
import json
import os
import sys
import urllib.error
import urllib.request

API = os.environ["API_URL"]


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would be a second call, for which there is no permit."""

    def redirect_request(self, *_):
        return None


api = urllib.request.build_opener(NoRedirects)


def call(job):
    headers = {
        "x-tenant": job["tenant"].encode(),
        "x-job-id": job["id"].encode(),
        "x-attempt": str(job["attempt"]),
    }
    # A body that is no text comes in base64.
    text, coded = job.get("body"), job.get("body_base64")
    data = base64.b64decode(coded) if text is None else text.encode()
    request = urllib.request.Request(API, data, headers)
    try:
        with api.open(request, timeout=8) as answer:
            body = answer.read().decode(errors="replace")
            return {"outcome": "done", "status": answer.status, "body": body}
    except urllib.error.HTTPError as refusal:
        if refusal.code == 429:
            after = refusal.headers.get("retry-after", "")
            return {"outcome": "throttled", "after": int(after) if after.isdecimal() else 1}
        outcome = "retry" if refusal.code >= 500 else "reject"
        return {"outcome": outcome, "reason": str(refusal)}
    except (OSError, http.client.HTTPException) as error:
        return {"outcome": "retry", "reason": str(error)}
    except ValueError as error:
        # No header can have this tenant or ID.
        return {"outcome": "reject", "reason": str(error)}


urllib.request.Request(API)  # fails if it is no URL
# What takes long, such as a login, belongs here: no job waits for it with a permit.
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    print(json.dumps({"call": job["call"], **call(job)}), flush=True)
