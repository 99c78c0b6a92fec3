// Who is looking, what they may do, and what kind of installation this is.

import { get } from "/console/api.js";
import { setServerTime } from "/console/time.js";

export let session = { authenticated: false, auth: "open", roles: [], links: {}, login: {} };

export async function loadSession() {
  session = await get("/v1/session");
  setServerTime(session.now);
  return session;
}

// Where a role is not among the caller's, what needs it is not shown; Lucius has the last word anyway.
export const may = (role) => !role || session.roles.includes(role);
