// A real OpenID provider for tests. It reads messages from standard input, one JSON object per line, and ends with it.
//
//   first    {"modules", "redirect_urls", "client_id", "client_secret", "methods", "claims_in_token"}
//   then     {"account", "claims"}: create or change an account; claims of null: remove it
//   output   {"issuer"}, and {"account"} for each message
import { generateKeyPairSync, randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const accounts = new Map();
const answer = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

const newKey = () => ({
  ...generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey.export({ format: "jwk" }),
  kid: randomUUID(),
  use: "sig",
  alg: "RS256",
});

const page = (error) => `<!doctype html><html lang="en"><title>Test provider</title><h1>Sign in</h1>
<p>${error}</p>
<form method="post"><label>Account <input name="login" autofocus required></label> <button>Sign in</button></form></html>`;

const bodyOf = async (request) => {
  let text = "";
  for await (const part of request) text += part;
  return new URLSearchParams(text);
};

// A session of a removed account has to sign in again.
const policyForRemovedAccounts = ({ base, Check }) => {
  const policy = base();
  const isGone = ({ oidc: { session } }) => session.accountId !== undefined && !accounts.has(session.accountId);
  policy.get("login").checks.add(new Check("gone", "there is no such account", "login_required", isGone));
  return policy;
};

const configure = ({ redirect_urls, client_id, client_secret, methods, claims_in_token }, policy) => ({
  clients: [
    {
      client_id,
      redirect_uris: redirect_urls,
      response_types: ["code"],
      grant_types: ["authorization_code"],
      token_endpoint_auth_method: client_secret ? methods[0] : "none",
      ...(client_secret ? { client_secret } : {}),
    },
  ],
  clientAuthMethods: client_secret ? methods : [...methods, "none"],
  jwks: { keys: [newKey()] },
  cookies: { keys: [randomUUID()] },
  pkce: { required: () => true },
  scopes: ["openid", "profile", "email", "groups"],
  claims: { openid: ["sub"], profile: ["name", "picture"], email: ["email", "email_verified"], groups: ["groups"] },
  conformIdTokenClaims: !claims_in_token,
  features: { devInteractions: { enabled: false } },
  interactions: { policy, url: (_, interaction) => `/interaction/${interaction.uid}` },
  ttl: { AccessToken: 600, AuthorizationCode: 60, Grant: 3600, IdToken: 600, Interaction: 600, Session: 3600 },
  findAccount: (_, id) => accounts.has(id) && { accountId: id, claims: () => ({ ...accounts.get(id), sub: id }) },
  // Skip the consent page.
  loadExistingGrant: async (ctx) => {
    const { client, params, provider, session } = ctx.oidc;
    const grant = new provider.Grant({ clientId: client.clientId, accountId: session.accountId });
    grant.addOIDCScope(params.scope);
    await grant.save();
    return grant;
  },
});

const signIn = (provider) => async (ctx, next) => {
  if (!ctx.path.startsWith("/interaction/")) return next();
  await provider.interactionDetails(ctx.req, ctx.res);
  ctx.type = "html";
  if (ctx.method !== "POST") {
    ctx.body = page("");
    return undefined;
  }
  const login = (await bodyOf(ctx.req)).get("login");
  if (!accounts.has(login)) {
    ctx.body = page("There is no such account.");
    return undefined;
  }
  ctx.redirect(await provider.interactionResult(ctx.req, ctx.res, { login: { accountId: login } }));
  return undefined;
};

const start = async (message) => {
  const { Provider, interactionPolicy } = await import(pathToFileURL(`${message.modules}/oidc-provider/lib/index.js`));
  const server = createServer();
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, configure(message, policyForRemovedAccounts(interactionPolicy)));
  provider.use(signIn(provider));
  server.on("request", provider.callback());
  answer({ issuer });
};

let started = false;
for await (const line of createInterface({ input: process.stdin })) {
  const message = JSON.parse(line);
  if (!started) {
    started = true;
    await start(message);
  } else {
    if (message.claims === null) accounts.delete(message.account);
    else accounts.set(message.account, message.claims);
    answer({ account: message.account });
  }
}
process.exit();
