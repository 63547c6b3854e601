// Requests to the server. Their addresses are relative, so that they have the page's token.

async function answerOf(response) {
  const data = await response.json().catch(() => ({ error: "the answer is not understood" }));
  if (!response.ok) throw Object.assign(new Error(data.error), { data });
  return data;
}

const gone = () => {
  throw new Error("the server does not answer; start `synth ui` again");
};

export async function get(path) {
  return answerOf(await fetch(path).catch(gone));
}

export async function post(path, body) {
  const headers = { "content-type": "application/json" };
  const request = { method: "POST", headers, body: JSON.stringify(body) };
  return answerOf(await fetch(path, request).catch(gone));
}

/** Call `onState` with each step of a search, the last one included; returns that. */
export function follow(job, onState) {
  return new Promise((resolve, reject) => {
    const source = new EventSource(`jobs/${job}`);
    source.onmessage = (event) => {
      const state = JSON.parse(event.data);
      onState(state);
      if (state.is_running) return;
      source.close();
      resolve(state);
    };
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) reject(new Error("the search is gone"));
    };
  });
}
