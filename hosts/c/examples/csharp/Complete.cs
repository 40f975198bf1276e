// Continue a text: mono Complete.exe BUNDLE NEW PROMPT
using System;
using System.Runtime.InteropServices;
using System.Text;

static class Complete {
  // ortolan.h; `bool` is a byte
  [DllImport("ortolan")]
  static extern IntPtr ortolan_open(string folder, IntPtr options, byte[] error);
  [DllImport("ortolan")]
  static extern void ortolan_close(IntPtr model);
  [DllImport("ortolan")]
  static extern IntPtr ortolan_model_tokenizer(IntPtr model, byte[] error);
  [DllImport("ortolan")]
  static extern byte ortolan_encode(IntPtr tokenizer, byte[] text, UIntPtr size, byte special,
      UIntPtr most, int[] ids, UIntPtr capacity, out UIntPtr count, byte[] error);
  [DllImport("ortolan")]
  static extern byte ortolan_generate(IntPtr model, int[] prompt, UIntPtr promptCount,
      IntPtr options, int[] tokens, UIntPtr capacity, out UIntPtr count, IntPtr finish,
      byte[] error);
  [DllImport("ortolan")]
  static extern byte ortolan_decode(IntPtr tokenizer, int[] ids, UIntPtr count, byte skip,
      byte[] text, UIntPtr capacity, out UIntPtr size, byte[] error);

  // a code of 4 bytes, then a text that ends with NUL
  static readonly byte[] error = new byte[516];

  static void Check(bool ok) {
    if (ok) return;
    int end = Array.IndexOf(error, (byte)0, 4);
    throw new InvalidOperationException(Encoding.UTF8.GetString(error, 4, end - 4));
  }

  static byte[] Continue(IntPtr model, int limit, byte[] prompt) {
    IntPtr tokenizer = ortolan_model_tokenizer(model, error);
    Check(tokenizer != IntPtr.Zero);
    int[] ids = new int[1 << 16], tokens = new int[limit];
    byte[] text = new byte[1 << 20];
    UIntPtr count, size, room = (UIntPtr)ids.Length;
    Check(0 != ortolan_encode(tokenizer, prompt, (UIntPtr)prompt.Length, 1, UIntPtr.Zero, ids, room,
        out count, error));
    Check(0 != ortolan_generate(model, ids, count, IntPtr.Zero, tokens, (UIntPtr)limit, out count,
        IntPtr.Zero, error));
    Check(0 != ortolan_decode(tokenizer, tokens, count, 1, text, (UIntPtr)text.Length, out size,
        error));
    Array.Resize(ref text, (int)size);
    return text;
  }

  static void Main(string[] words) {
    IntPtr model = ortolan_open(words[0], IntPtr.Zero, error);
    Check(model != IntPtr.Zero);
    byte[] text = Continue(model, int.Parse(words[1]), Encoding.UTF8.GetBytes(words[2]));
    Console.OpenStandardOutput().Write(text, 0, text.Length);
    ortolan_close(model);
  }
}
