// The process of one measured run of graphile-worker. The argument is its request; it prints the result as JSON.
// The scenarios are the same as in measure.py and open_transaction.py.

import { Logger, makeWorkerUtils, run as startWorker, runMigrations } from "graphile-worker";
import pg from "pg";

const request = JSON.parse(process.argv[2]);
const { options } = request;
const TASK = "noop";
const PAD = "p".repeat(170);
const FILL_JOBS = 500;
const FILL_CALLERS = 4;
const SETTLED_POLL_MS = 10;
const IDLE_MS = 1500;
const GAP_MS = [5, 30];
const BACKLOG_JOBS = 2000;
const BATCH_JOBS = 200;

const logger = new Logger(() => () => {});
const payload = (number) => ({ number, pad: PAD });
const job = (number) => ({ identifier: TASK, payload: payload(number) });
const range = (start, count) => Array.from({ length: count }, (_, index) => start + index);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const now = () => performance.now();

function percentile(values, percent) {
  const sorted = [...values].sort((a, b) => a - b);
  const position = ((sorted.length - 1) * percent) / 100;
  const low = Math.floor(position);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (position - low);
}

class StartCounter {
  jobs = 0;
  first = 0;
  last = 0;
  expectedJobs = Infinity;
  reached = null;

  record = () => {
    this.last = now();
    if (!this.jobs) this.first = this.last;
    this.jobs += 1;
    if (this.jobs >= this.expectedJobs) this.reached?.();
  };

  awaitCount(jobs) {
    this.expectedJobs = jobs;
    if (this.jobs >= jobs) return Promise.resolve();
    return new Promise((resolve) => (this.reached = resolve));
  }
}

const preset = {
  worker: {
    connectionString: request.url,
    concurrentJobs: options.workers,
    maxPoolSize: options.connections,
    logger,
    ...(options.claim_jobs > 1 && {
      localQueue: { size: options.claim_jobs },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    }),
  },
};

async function working(starts, use) {
  const taskList = { [TASK]: async () => starts.record() };
  const worker = await startWorker({ preset, taskList, noHandleSignals: true, logger });
  try {
    return await use();
  } finally {
    await worker.stop();
  }
}

async function measureCalls(utils, size, call) {
  const latencies = [];
  let jobs = 0;
  let counting = false;
  let running = true;
  let next = 0;
  const caller = async () => {
    while (running) {
      const number = next;
      next += size;
      const began = now();
      await call(utils, number);
      if (counting) {
        jobs += size;
        latencies.push(now() - began);
      }
    }
  };
  const callers = range(0, options.callers).map(caller);
  await sleep(request.warm_seconds * 1000);
  counting = true;
  const began = now();
  await sleep(request.seconds * 1000);
  counting = false;
  const seconds = (now() - began) / 1000;
  running = false;
  await Promise.all(callers);
  return { rate: jobs / seconds, latencies };
}

async function single(utils) {
  const { rate, latencies } = await measureCalls(utils, 1, (to, number) => to.addJob(TASK, payload(number)));
  return { rate, p50_ms: percentile(latencies, 50), p99_ms: percentile(latencies, 99) };
}

async function bulk(utils) {
  const add = (to, number) => to.addJobs(range(number, options.batch_jobs).map(job));
  const { rate } = await measureCalls(utils, options.batch_jobs, add);
  return { rate };
}

async function fill(utils) {
  let next = 0;
  const caller = async () => {
    while (next < request.jobs) {
      const start = next;
      next += FILL_JOBS;
      await utils.addJobs(range(start, Math.min(FILL_JOBS, request.jobs - start)).map(job));
    }
  };
  await Promise.all(range(0, FILL_CALLERS).map(caller));
}

async function run(utils) {
  await fill(utils);
  const client = new pg.Client({ connectionString: request.url });
  await client.connect();
  await client.query("ANALYZE");
  const unsettled = "SELECT EXISTS (SELECT FROM graphile_worker._private_jobs) AS any";
  const starts = new StartCounter();
  const seconds = await working(starts, async () => {
    await starts.awaitCount(request.jobs);
    while ((await client.query(unsettled)).rows[0].any) await sleep(SETTLED_POLL_MS);
    return (now() - starts.first) / 1000;
  });
  await client.end();
  if (starts.jobs !== request.jobs) throw new Error(`${request.jobs} jobs were enqueued, but ${starts.jobs} were started`);
  return { rate: request.jobs / seconds };
}

async function latency(utils) {
  const starts = new StartCounter();
  const latencies = [];
  await working(starts, async () => {
    for (const number of range(0, request.samples + 1)) {
      await sleep(number < 2 ? IDLE_MS : GAP_MS[0] + Math.random() * (GAP_MS[1] - GAP_MS[0]));
      const began = now();
      await utils.addJob(TASK, payload(number));
      await starts.awaitCount(number + 1);
      if (number) latencies.push(starts.last - began);
    }
  });
  return { p50_ms: percentile(latencies, 50), p99_ms: percentile(latencies, 99) };
}

async function measureRate(starts, seconds) {
  const jobs = starts.jobs;
  const began = now();
  await sleep(seconds * 1000);
  return (starts.jobs - jobs) / ((now() - began) / 1000);
}

async function held(utils) {
  const starts = new StartCounter();
  let running = true;
  const enqueue = async () => {
    let enqueued = 0;
    while (running) {
      if (enqueued - starts.jobs > BACKLOG_JOBS - BATCH_JOBS) {
        await sleep(2);
      } else {
        await utils.addJobs(range(enqueued, BATCH_JOBS).map(job));
        enqueued += BATCH_JOBS;
      }
    }
  };
  return working(starts, async () => {
    const enqueueing = enqueue();
    await sleep(request.warm_seconds * 1000);
    const before = await measureRate(starts, request.window_seconds);
    const holder = new pg.Client({ connectionString: request.url });
    await holder.connect();
    await holder.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
    const tables = await holder.query(
      "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables " +
        "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')",
    );
    for (const { name } of tables.rows) await holder.query(`SELECT 1 FROM ${name} LIMIT 1`);
    await sleep(Math.max(0, request.seconds - request.window_seconds) * 1000);
    const after = await measureRate(starts, request.window_seconds);
    await holder.query("COMMIT");
    await holder.end();
    running = false;
    await enqueueing;
    return { rate: after, before_rate: before };
  });
}

await runMigrations({ preset, logger });
const utils = await makeWorkerUtils({
  preset: { worker: { connectionString: request.url, maxPoolSize: options.connections, logger } },
});
const result = await { single, bulk, run, latency, held }[request.scenario](utils);
await utils.release();
console.log(JSON.stringify(result));
process.exit(0);
