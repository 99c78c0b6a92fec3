// Logs in at an identity provider, as a public client: the authorization code flow with PKCE. The token that comes of
// it is kept like a key, in this tab alone.

import { useKey } from "/console/api.js";

const FLOW = "lucius.login";
const HERE = `${location.origin}/`;

const base64url = (bytes) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const unguessable = () => base64url(crypto.getRandomValues(new Uint8Array(32)));

export const hostOf = (issuer) => new URL(issuer).host;

async function asked(url, issuer, options = {}) {
  let answer;
  try {
    answer = await fetch(url, { credentials: "omit", cache: "no-store", ...options });
  } catch {
    throw new Error(`${hostOf(issuer)} does not answer this page. It has to be up, and to allow calls from ${location.origin} (CORS).`);
  }
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(`${hostOf(issuer)} did not log you in: ${said.error_description ?? said.error ?? `HTTP ${answer.status}`}`);
  return said;
}

export async function beginLogin({ issuer, client_id: client, scopes }) {
  if (!crypto.subtle) throw new Error("A browser logs in over HTTPS alone, or on the machine itself.");
  const found = await asked(`${issuer.replace(/\/$/, "")}/.well-known/openid-configuration`, issuer);
  const [authorize, token] = [new URL(found.authorization_endpoint), new URL(found.token_endpoint)];
  if (found.issuer !== issuer || !/^https?:$/.test(authorize.protocol)) throw new Error(`${hostOf(issuer)} names another issuer, or no page to log in at.`);
  if (token.origin !== new URL(issuer).origin) throw new Error(`${hostOf(issuer)} gives its tokens at another host, ${token.host}, which this page may not call.`);
  const flow = { issuer, client, token: token.href, state: unguessable(), verifier: unguessable(), at: location.hash };
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(flow.verifier));
  sessionStorage.setItem(FLOW, JSON.stringify(flow));
  for (const [name, value] of Object.entries({ response_type: "code", client_id: client, redirect_uri: HERE, scope: scopes, state: flow.state,
    code_challenge: base64url(new Uint8Array(digest)), code_challenge_method: "S256" })) authorize.searchParams.set(name, value);
  location.assign(authorize);
}

// Takes what the provider sent the browser back with, if it did, and goes to the page that was wanted.
export async function endLogin() {
  const given = new URLSearchParams(location.search);
  if (!given.has("state")) return;
  const flow = JSON.parse(sessionStorage.getItem(FLOW) ?? "null");
  sessionStorage.removeItem(FLOW);
  history.replaceState(null, "", `/${flow?.at ?? ""}`);
  if (!flow || given.get("state") !== flow.state || (given.get("iss") ?? flow.issuer) !== flow.issuer)
    throw new Error("This address ends no login that was begun in this tab. Log in again.");
  if (!given.get("code")) throw new Error(`${hostOf(flow.issuer)} did not log you in: ${given.get("error_description") ?? given.get("error") ?? "it sent no code"}`);
  const body = new URLSearchParams({ grant_type: "authorization_code", code: given.get("code"), redirect_uri: HERE, client_id: flow.client, code_verifier: flow.verifier });
  const { access_token: token } = await asked(flow.token, flow.issuer, { method: "POST", body });
  if (typeof token !== "string" || !/^[\x21-\x7e]+$/.test(token)) throw new Error(`${hostOf(flow.issuer)} sent no access token.`);
  useKey(token);
}
