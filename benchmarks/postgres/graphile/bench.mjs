// The process of one measured run of graphile-worker: reads an order, prints its figures as JSON.
// The scenarios are those of measure.py and held.py, word for word as far as the languages allow.

import { Logger, makeWorkerUtils, run as startWorker, runMigrations } from "graphile-worker";
import pg from "pg";

const order = JSON.parse(process.argv[2]);
const { way } = order;
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
const range = (start, count) => Array.from({ length: count }, (_, place) => start + place);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const now = () => performance.now();

function percentile(values, percent) {
  const sorted = [...values].sort((a, b) => a - b);
  const place = ((sorted.length - 1) * percent) / 100;
  const low = Math.floor(place);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (place - low);
}

class Starts {
  jobs = 0;
  first = 0;
  last = 0;
  wanted = Infinity;
  reached = null;

  saw = () => {
    this.last = now();
    if (!this.jobs) this.first = this.last;
    this.jobs += 1;
    if (this.jobs >= this.wanted) this.reached?.();
  };

  upto(jobs) {
    this.wanted = jobs;
    if (this.jobs >= jobs) return Promise.resolve();
    return new Promise((resolve) => (this.reached = resolve));
  }
}

const preset = {
  worker: {
    connectionString: order.url,
    concurrentJobs: way.workers,
    maxPoolSize: way.connections,
    logger,
    ...(way.claim_jobs > 1 && {
      localQueue: { size: way.claim_jobs },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    }),
  },
};

async function working(starts, use) {
  const taskList = { [TASK]: async () => starts.saw() };
  const worker = await startWorker({ preset, taskList, noHandleSignals: true, logger });
  try {
    return await use();
  } finally {
    await worker.stop();
  }
}

async function counted(utils, size, call) {
  let found = [];
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
        found.push(now() - began);
      }
    }
  };
  const callers = range(0, way.callers).map(caller);
  await sleep(order.warm_seconds * 1000);
  counting = true;
  const began = now();
  await sleep(order.seconds * 1000);
  counting = false;
  const seconds = (now() - began) / 1000;
  running = false;
  await Promise.all(callers);
  return { rate: jobs / seconds, found };
}

async function single(utils) {
  const { rate, found } = await counted(utils, 1, (to, number) => to.addJob(TASK, payload(number)));
  return { rate, p50_ms: percentile(found, 50), p99_ms: percentile(found, 99) };
}

async function bulk(utils) {
  const add = (to, number) => to.addJobs(range(number, way.batch_jobs).map(job));
  const { rate } = await counted(utils, way.batch_jobs, add);
  return { rate };
}

async function fill(utils) {
  let next = 0;
  const caller = async () => {
    while (next < order.jobs) {
      const start = next;
      next += FILL_JOBS;
      await utils.addJobs(range(start, Math.min(FILL_JOBS, order.jobs - start)).map(job));
    }
  };
  await Promise.all(range(0, FILL_CALLERS).map(caller));
}

async function run(utils) {
  await fill(utils);
  const looking = new pg.Client({ connectionString: order.url });
  await looking.connect();
  await looking.query("ANALYZE");
  const left = "SELECT EXISTS (SELECT FROM graphile_worker._private_jobs) AS any";
  const starts = new Starts();
  const seconds = await working(starts, async () => {
    await starts.upto(order.jobs);
    while ((await looking.query(left)).rows[0].any) await sleep(SETTLED_POLL_MS);
    return (now() - starts.first) / 1000;
  });
  await looking.end();
  if (starts.jobs !== order.jobs) throw new Error(`${order.jobs} jobs were enqueued, but ${starts.jobs} were run`);
  return { rate: order.jobs / seconds };
}

async function latency(utils) {
  const starts = new Starts();
  const found = [];
  await working(starts, async () => {
    for (const number of range(0, order.samples + 1)) {
      await sleep(number < 2 ? IDLE_MS : GAP_MS[0] + Math.random() * (GAP_MS[1] - GAP_MS[0]));
      const began = now();
      await utils.addJob(TASK, payload(number));
      await starts.upto(number + 1);
      if (number) found.push(starts.last - began);
    }
  });
  return { p50_ms: percentile(found, 50), p99_ms: percentile(found, 99) };
}

async function rateOf(starts, seconds) {
  const jobs = starts.jobs;
  const began = now();
  await sleep(seconds * 1000);
  return (starts.jobs - jobs) / ((now() - began) / 1000);
}

async function held(utils) {
  const starts = new Starts();
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
    await sleep(order.warm_seconds * 1000);
    const before = await rateOf(starts, order.window_seconds);
    const holding = new pg.Client({ connectionString: order.url });
    await holding.connect();
    await holding.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
    const tables = await holding.query(
      "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables " +
        "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')",
    );
    for (const { name } of tables.rows) await holding.query(`SELECT 1 FROM ${name} LIMIT 1`);
    await sleep(Math.max(0, order.seconds - order.window_seconds) * 1000);
    const after = await rateOf(starts, order.window_seconds);
    await holding.query("COMMIT");
    await holding.end();
    running = false;
    await enqueueing;
    return { rate: after, before_rate: before };
  });
}

await runMigrations({ preset, logger });
const utils = await makeWorkerUtils({
  preset: { worker: { connectionString: order.url, maxPoolSize: way.connections, logger } },
});
const figures = await { single, bulk, run, latency, held }[order.scenario](utils);
await utils.release();
console.log(JSON.stringify(figures));
process.exit(0);
