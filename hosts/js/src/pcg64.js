/**
 * NumPy's PCG64, so that a seed draws the same numbers here and in Python.
 *
 * Sources: M. O'Neill, "PCG" (2014), XSL-RR 128/64; NumPy's SeedSequence (numpy.random).
 */

const MASK64 = (1n << 64n) - 1n;
const MASK128 = (1n << 128n) - 1n;
const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;

/** The bit generator, from a whole number of at least 0. */
export class PCG64 {
  #state = 0n;
  #increment;

  constructor(seed) {
    const [a, b, c, d] = seedState(BigInt(seed));
    this.#increment = ((((c << 64n) | d) << 1n) | 1n) & MASK128;
    this.#step();
    this.#state = (this.#state + ((a << 64n) | b)) & MASK128;
    this.#step();
  }

  /** The next 64 bits. */
  next() {
    this.#step();
    const folded = (this.#state >> 64n) ^ (this.#state & MASK64);
    const turn = this.#state >> 122n;
    return ((folded >> turn) | (folded << (64n - turn))) & MASK64;
  }

  /** A draw from [0, 1). */
  uniform() {
    return Number(this.next() >> 11n) * 2 ** -53;
  }

  #step() {
    this.#state = (this.#state * MULTIPLIER + this.#increment) & MASK128;
  }
}

/** Four words of 64 bits from a seed, as SeedSequence makes them. */
function seedState(seed) {
  const entropy = [];
  do {
    entropy.push(Number(seed & 0xffffffffn));
    seed >>= 32n;
  } while (seed > 0n);
  const pool = mixed(entropy);
  let constant = 0x8b51f9dd;
  const words = Array.from({ length: 8 }, (_, index) => {
    let value = pool[index % 4] ^ constant;
    constant = Math.imul(constant, 0x58f38ded);
    value = Math.imul(value, constant);
    return BigInt((value ^ (value >>> 16)) >>> 0);
  });
  return [0, 2, 4, 6].map((index) => words[index] | (words[index + 1] << 32n));
}

function mixed(entropy) {
  let constant = 0x43b0d7e5;
  const hash = (value) => {
    value ^= constant;
    constant = Math.imul(constant, 0x931e8875);
    value = Math.imul(value, constant);
    return value ^ (value >>> 16);
  };
  const mix = (x, y) => {
    const value = (Math.imul(0xca01f9dd, x) - Math.imul(0x4973f715, y)) | 0;
    return value ^ (value >>> 16);
  };
  const pool = [0, 1, 2, 3].map((index) => hash(entropy[index] ?? 0));
  for (let source = 0; source < Math.max(4, entropy.length); source++) {
    for (let target = 0; target < 4; target++) {
      const word = source < 4 ? pool[source] : entropy[source];
      if (source !== target) pool[target] = mix(pool[target], hash(word));
    }
  }
  return pool;
}
