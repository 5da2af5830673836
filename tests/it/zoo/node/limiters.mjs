// APIs behind limiters from npm: 20 calls in 2 s for each tenant.
// usage: node limiters.mjs KIND PORT
import express from 'express';
import { rateLimit } from 'express-rate-limit';
import fastify from 'fastify';
import fastifyRateLimit from '@fastify/rate-limit';
import { RateLimiterMemory } from 'rate-limiter-flexible';

const [kind, port] = process.argv.slice(2);
const LIMIT = 20, WINDOW_MS = 2000;

// The test reads these lines.
function note(tenant, status) {
  console.log(`ZOO ${tenant} ${status} ${Date.now()}`);
}

function expressApi(middleware) {
  const app = express();
  app.use((request, response, next) => {
    response.on('finish', () => note(request.get('x-tenant'), response.statusCode));
    next();
  });
  app.use(middleware);
  app.post('/', (_, response) => response.json({}));
  app.listen(Number(port), '127.0.0.1');
}

// Configured as its documentation shows.
function flexible() {
  const limiter = new RateLimiterMemory({ points: LIMIT, duration: WINDOW_MS / 1000 });
  return async (request, response, next) => {
    const headers = (state) => response.set({
      'Retry-After': state.msBeforeNext / 1000,
      'X-RateLimit-Limit': LIMIT,
      'X-RateLimit-Remaining': state.remainingPoints,
      'X-RateLimit-Reset': Math.ceil((Date.now() + state.msBeforeNext) / 1000),
    });
    try {
      headers(await limiter.consume(request.get('x-tenant')));
      next();
    } catch (state) {
      headers(state);
      response.status(429).send('Too Many Requests');
    }
  };
}

async function fastifyApi() {
  const app = fastify();
  app.addHook('onResponse', async (request, reply) => {
    note(request.headers['x-tenant'], reply.statusCode);
  });
  await app.register(fastifyRateLimit, {
    max: LIMIT, timeWindow: WINDOW_MS, keyGenerator: (request) => request.headers['x-tenant'],
  });
  // Accepts a body of any type and ignores it.
  app.addContentTypeParser('*', (_, payload, done) => {
    payload.resume();
    done(null);
  });
  app.post('/', async () => ({}));
  await app.listen({ port: Number(port), host: '127.0.0.1' });
}

const HEADERS = {
  'express-legacy': { legacyHeaders: true, standardHeaders: false },
  'express-draft-6': { legacyHeaders: false, standardHeaders: 'draft-6' },
  'express-draft-7': { legacyHeaders: false, standardHeaders: 'draft-7' },
  'express-draft-8': { legacyHeaders: false, standardHeaders: 'draft-8' },
};

if (kind in HEADERS) {
  expressApi(rateLimit({
    windowMs: WINDOW_MS, limit: LIMIT, keyGenerator: (request) => request.get('x-tenant'), ...HEADERS[kind],
  }));
} else if (kind === 'flexible') {
  expressApi(flexible());
} else if (kind === 'fastify') {
  await fastifyApi();
} else {
  throw new Error(`no limiter is called ${kind}`);
}
