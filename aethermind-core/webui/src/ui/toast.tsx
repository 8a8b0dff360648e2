import { dismiss, notice } from "../model/notices";

/** The current notice, with an Undo button if it has one. */
export function Toast() {
  const shown = notice.value;
  const takeBack = () => {
    shown?.undo?.();
    dismiss();
  };
  return (
    <div class="toast" role="status" aria-live="polite">
      {shown && (
        <p>
          {shown.text}
          {shown.undo && (
            <button type="button" class="link" onClick={takeBack}>
              Undo
            </button>
          )}
        </p>
      )}
    </div>
  );
}
