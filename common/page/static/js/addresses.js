// Addresses within a page (after #), and of what it asks for.

export const part = encodeURIComponent;

/** The words of an address within the page; none where it is damaged. */
export function wordsOf(hash) {
  try {
    return hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    return [];
  }
}

/** A path with those of the filter's values that say something. */
export function query(path, filter) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(filter)) if (value !== "" && value !== null && value !== 0) words.set(name, String(value));
  const text = words.toString();
  return text ? `${path}?${text}` : path;
}
