// Continue a text: java -Djna.library.path=BUILD Complete BUNDLE NEW PROMPT
import com.sun.jna.Library;
import com.sun.jna.Native;
import com.sun.jna.Pointer;
import com.sun.jna.ptr.LongByReference;
import java.nio.charset.StandardCharsets;

public final class Complete {
  /** ortolan.h, with sizes of 64 bits and `bool` as a byte. */
  interface Ortolan extends Library {
    Pointer ortolan_open(String folder, Pointer options, byte[] error);
    void ortolan_close(Pointer model);
    Pointer ortolan_model_tokenizer(Pointer model, byte[] error);
    byte ortolan_encode(Pointer tokenizer, byte[] text, long size, byte special, long most,
        int[] ids, long capacity, LongByReference count, byte[] error);
    byte ortolan_generate(Pointer model, int[] prompt, long count, Pointer options, int[] tokens,
        long capacity, LongByReference written, Pointer finish, byte[] error);
    byte ortolan_decode(Pointer tokenizer, int[] ids, long count, byte skip, byte[] text,
        long capacity, LongByReference size, byte[] error);
  }

  /** A code of 4 bytes, then a text that ends with NUL. */
  private static final byte[] error = new byte[516];

  private static void check(boolean ok) {
    int end = 4;
    while (end < error.length && error[end] != 0) end++;
    if (!ok) throw new IllegalStateException(new String(error, 4, end - 4, StandardCharsets.UTF_8));
  }

  static byte[] complete(Ortolan library, String bundle, int limit, byte[] prompt) {
    Pointer model = library.ortolan_open(bundle, null, error);
    check(model != null);
    try {
      Pointer tokenizer = library.ortolan_model_tokenizer(model, error);
      check(tokenizer != null);
      int[] ids = new int[1 << 16], tokens = new int[limit];
      byte[] text = new byte[1 << 20];
      LongByReference count = new LongByReference();
      check(0 != library.ortolan_encode(tokenizer, prompt, prompt.length, (byte) 1, 0, ids,
          ids.length, count, error));
      check(0 != library.ortolan_generate(model, ids, count.getValue(), null, tokens, limit, count,
          null, error));
      check(0 != library.ortolan_decode(tokenizer, tokens, count.getValue(), (byte) 1, text,
          text.length, count, error));
      return java.util.Arrays.copyOf(text, (int) count.getValue());
    } finally {
      library.ortolan_close(model);
    }
  }

  public static void main(String[] words) throws Exception {
    Ortolan library = Native.load("ortolan", Ortolan.class);
    byte[] prompt = words[2].getBytes(StandardCharsets.UTF_8);
    System.out.write(complete(library, words[0], Integer.parseInt(words[1]), prompt));
    System.out.flush();
  }
}
