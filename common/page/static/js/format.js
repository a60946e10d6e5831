// Amounts as people read them. Bytes, seconds, shares and percentages are written exactly as by common/text/describe.py.

export const DASH = "–";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** Like Python's `f"{value:.1f}"`: a digit that is exactly a half goes to the even side. */
export function fixed(value, digits) {
  const text = value.toFixed(digits);
  const exact = Math.abs(value).toFixed(60);
  const rest = exact.slice(exact.indexOf(".") + 1 + digits);
  if (!/^50*$/.test(rest) || Number(text.at(-1)) % 2 === 0) return text;
  const lower = exact.slice(0, exact.indexOf(".") + (digits ? 1 + digits : 0));
  return value < 0 ? `-${lower}` : lower;
}

/** 512 B, 4.3 kB, 12.0 MB, 1.20 GB: powers of ten, as network links are sold. */
export function bytes(count) {
  if (!isNumber(count)) return DASH;
  if (count < 999.5) return `${fixed(count, 0)} B`;
  if (count < 999_950) return `${fixed(count / 1e3, 1)} kB`;
  return count < 999_950_000 ? `${fixed(count / 1e6, 1)} MB` : `${fixed(count / 1e9, 2)} GB`;
}

/** 4.2 s, 3 min 5 s, 2 h 10 min, 3 d 4 h. */
export function seconds(value) {
  if (!isNumber(value)) return DASH;
  if (value < 59.95) return `${fixed(Math.max(0, value), 1)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

/** 5 s, 40 s, 2 min 30 s, 37 min, 2 h 10 min, 13 h: as many digits as an estimate is worth, for a sentence with "about". */
export function estimate(value) {
  if (!isNumber(value)) return DASH;
  const [, step] = [[7.5, 5], [55, 10], [285, 30], [3570, 60], [12 * 3600 - 300, 600], [Infinity, 3600]].find(([below]) => value < below);
  const whole = Math.max(5, Math.floor(value / step + 0.5) * step);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  const parts = whole < 60 ? [`${whole} s`] : whole < 3600 ? [`${minutes} min`, `${whole % 60} s`]
    : whole < 48 * 3600 ? [`${hours} h`, `${minutes} min`] : [`${Math.floor(hours / 24)} d`, `${hours % 24} h`];
  return parts.filter((part, index) => index === 0 || !part.startsWith("0 ")).join(" ");
}

/** A duration that ticks: whole seconds, so that the last digit does not dance. */
export function duration(value) {
  if (!isNumber(value)) return DASH;
  return value < 59.95 ? `${Math.floor(Math.max(0, value))} s` : seconds(value);
}

/** Sign, digits and exponent of the shortest decimal text of a number, times a hundred: 0.8325 is 8.325 * 10^1. */
function percentOf(value) {
  const [digits, exponent] = Math.abs(value).toExponential().split("e");
  return { sign: value < 0 ? -1n : 1n, digits: digits.replace(".", ""), exponent: Number(exponent) + 2 };
}

/** A percentage in units of its last decimal, as a whole number; halves go away from zero, or down with `down`. */
function rounded({ sign, digits, exponent }, decimals, down = false) {
  const power = exponent - (digits.length - 1) + decimals;
  if (power >= 0) return sign * BigInt(digits) * 10n ** BigInt(power);
  const unit = 10n ** BigInt(-power);
  return sign * (down ? BigInt(digits) / unit : (2n * BigInt(digits) + unit) / (2n * unit));
}

/** Units of the last decimal as text: 833 with one decimal is 83.3. */
function decimal(units, decimals) {
  const text = String(units < 0n ? -units : units).padStart(decimals + 1, "0");
  const written = decimals ? `${text.slice(0, -decimals)}.${text.slice(-decimals)}` : text;
  return units < 0n ? `-${written}` : written;
}

/** A share of 1 in per cent with three digits or so: 0.31 %, 12.4 %, 100 %; a dash when it is unknown. */
export function share(value) {
  if (!isNumber(value)) return DASH;
  const percent = percentOf(value);
  const decimals = value === 0 || value >= 0.9995 ? 0 : value >= 0.01 ? 1 : 1 - percent.exponent;
  const text = decimal(rounded(percent, decimals), decimals);
  return `${value >= 0.01 || !text.includes(".") ? text : text.replace(/\.?0+$/, "")} %`;
}

/** Accuracy and recall: one decimal always, so that columns line up. */
export function percentage(value, decimals = 1) {
  return isNumber(value) ? `${decimal(rounded(percentOf(value), decimals), decimals)} %` : DASH;
}

/** How many points two shares differ, as their percentages are shown: +11.5 or −2.0. */
export function points(after, before, decimals = 1) {
  if (!isNumber(after) || !isNumber(before)) return DASH;
  const units = rounded(percentOf(after), decimals) - rounded(percentOf(before), decimals);
  return `${units < 0n ? "−" : "+"}${decimal(units < 0n ? -units : units, decimals)}`;
}

const AUROC_DECIMALS = 3;
const isArea = (measure) => measure === "auroc" || measure === "average_precision";

/** An AUROC or an average precision: 0.953. */
export const area = (value) => (isNumber(value) ? fixed(value, AUROC_DECIMALS) : DASH);

/** A study's measure: an AUROC or an average precision as 0.953, all others in per cent. */
export function score(value, measure) {
  return isArea(measure) ? area(value) : percentage(value);
}

/** An interval of 95 % in the same unit: "89.2 to 94.7 %"; empty without one. */
export function interval(value, measure) {
  if (!isNumber(value?.low) || !isNumber(value?.high)) return "";
  return `${score(value.low, measure).replace(/ %$/, "")} to ${score(value.high, measure)}`;
}

/** How far two of them differ: +0.012 of an AUROC, else points. */
export function scoreChange(after, before, measure) {
  if (!isArea(measure)) return points(after, before);
  if (!isNumber(after) || !isNumber(before)) return DASH;
  const difference = area(after) - area(before);
  return `${difference < 0 ? "−" : "+"}${Math.abs(difference).toFixed(AUROC_DECIMALS)}`;
}

/** How far something is, 0 to 1, in whole per cent; rounded down, for 100 % is done. */
export function progress(fraction) {
  return `${decimal(rounded(percentOf(isNumber(fraction) ? Math.min(1, Math.max(0, fraction)) : 0), 0, true), 0)} %`;
}

/** 1 474: with thin spaces, because a comma means something else in half of Europe. */
export function count(value) {
  return isNumber(value) ? Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, " ") : DASH;
}

/** "1 silo", "3 silos". */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** Any metric: four significant digits, no trailing zeros. */
export function number(value) {
  if (!isNumber(value)) return DASH;
  return Number.isInteger(value) && Math.abs(value) < 1e15 ? count(value).replace(/^-/, "−") : `${Number(value.toPrecision(4))}`;
}

const two = (value) => String(value).padStart(2, "0");

/** 14:02:10, with the date when it is not today's. */
export function clock(unix, now = Date.now() / 1000) {
  if (!isNumber(unix)) return DASH;
  const then = new Date(1000 * unix);
  const time = `${two(then.getHours())}:${two(then.getMinutes())}:${two(then.getSeconds())}`;
  return then.toDateString() === new Date(1000 * now).toDateString() ? time : `${day(unix)} ${time}`;
}

/** 21 Nov 2026. */
export function day(unix) {
  const then = new Date(1000 * unix);
  const month = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"][then.getMonth()];
  return `${then.getDate()} ${month} ${then.getFullYear()}`;
}

/** The whole moment, for titles and tables. */
export function moment(unix) {
  if (!isNumber(unix)) return DASH;
  const then = new Date(1000 * unix);
  return `${day(unix)} ${two(then.getHours())}:${two(then.getMinutes())}:${two(then.getSeconds())}`;
}

/** "just now", "35 s ago", "4 min ago", "3 h ago", "2 d ago". */
export function ago(unix, now) {
  if (!isNumber(unix)) return "never";
  const past = now - unix;
  if (past < 3) return "just now";
  if (past < 60) return `${Math.floor(past)} s ago`;
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 172_800) return `${Math.floor(past / 3600)} h ago`;
  return `${Math.floor(past / 86_400)} d ago`;
}

/** A unit of bytes for numbers up to `largest`: [divisor, name]. */
export function unitOf(largest) {
  if (largest >= 1e9) return [1e9, "GB"];
  if (largest >= 1e6) return [1e6, "MB"];
  return largest >= 1e3 ? [1e3, "kB"] : [1, "B"];
}

/** A measure by the name that it has in numbers, as people write it: "auroc" as "AUROC". */
export const measure = (name) => words(name).replace(/\bauroc\b/, "AUROC");

/** Why there is no update: a code without a sentence, "no_confident_example", in words. */
export const reason = (text) => (/^[a-z]+(_[a-z]+)+$/.test(text) ? words(text) : text);

/** "local_epochs" as "local epochs". */
export function words(name) {
  return String(name).replaceAll("_", " ");
}
