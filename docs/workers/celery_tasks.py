"""A Celery worker whose tasks say when they are done."""

import os

from celery import Celery, signals

app = Celery("tasks", broker=os.environ["AMQP_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
)


@app.task(name="orders.make")
def make(order):
    print(f"made {order}", flush=True)


@signals.task_postrun.connect
def say_done(task=None, state=None, retval=None, **_):
    queue = getattr(task.request, "x-sluicegate-done", None)
    # A task that Celery itself runs again is not done; the next run says how it ended.
    if not queue or state == "RETRY":
        return
    answer = {"outcome": "done"}
    if state == "FAILURE":
        answer = {"outcome": "retry", "reason": repr(retval)[:500]}
    with app.producer_pool.acquire() as producer:
        token = getattr(task.request, "x-sluicegate-done-token")
        producer.publish(answer, serializer="json", exchange="", routing_key=queue, correlation_id=token)
