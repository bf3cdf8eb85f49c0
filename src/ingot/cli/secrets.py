"""`ingot secrets`: values that are used by name and never shown."""

from __future__ import annotations

from ingot.cli.asking import Asking, asking
from ingot.cli.records import record_commands
from ingot.cli.teaching import examples
from ingot.identity.secret_values import SECRET

app = record_commands(SECRET, "Keep values that are used by name and never shown.", raw="value")


@app.command("rotate-key", epilog=examples("ingot secrets rotate-key"))
@asking
def rotate_key(ask: Asking) -> None:
    """Encrypt the secrets of all tenants with the current INGOT_SECRET_KEY.

    To change the key, start the server with INGOT_SECRET_KEY=new,old, run this, and then remove the old one.
    """
    done = ask.client.admin.rotate_secret_key()
    ask.out.outcome(done, f"{done.rotated} secrets were encrypted again, with the key {done.key_id}.")
    if done.unreadable and not ask.out.json:
        ask.out.say(f"{done.unreadable} secrets could not be decrypted: name their key in INGOT_SECRET_KEY too.")
