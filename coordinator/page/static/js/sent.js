// What was sent: what the kernel has counted on the connections. In a simulation nothing crosses a network, so it is what
// its payloads would have been.

import { store } from "./store.js";

/** Whether the page is over the folder of a simulation, which has no coordinator and no network. */
export const isSimulation = () => store.federation?.address === "";

/** A study as it is drawn: of a simulation its payloads stand where its bytes on the wire would. */
export function asSent(study) {
  if (!study || !isSimulation()) return study;
  const { cost } = study;
  let spent = 0;
  return {
    ...study,
    cost: { ...cost, wire: cost.payload, forecast: null, share_of_dense: cost.dense_total ? (cost.payload.down + cost.payload.up) / cost.dense_total : null },
    rounds: study.rounds.map((round) => {
      spent += round.payload_down + round.payload_up;
      return { ...round, wire_down: round.payload_down, wire_up: round.payload_up, wire_cumulative: spent };
    }),
  };
}

/** What these bytes are called as a heading, and within a line: "On the wire", "on the wire". */
export const sentHeading = () => (isSimulation() ? "Payload" : "On the wire");
export const sentWords = () => (isSimulation() ? "of payload" : "on the wire");
