// A worker for pages that are opened as files, where browsers start none: the search runs in a frame that nobody sees.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = this.onerror = null;
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      // What the script inside says goes out; the frame's own messages would go in circles.
      inside.postMessage = (data) => this.tell(data);
      inside.importScripts = () => { throw new Error("no scripts are imported here"); };
      const script = inside.document.createElement("script");
      script.onload = () => { const all = this.waiting; this.waiting = null; all.forEach((data) => this.hear(data)); };
      script.onerror = (error) => this.onerror?.(error);
      script.src = String(url);
      inside.document.body.append(script);
    }

    tell(data) {
      const said = new MessageEvent("message", { data });
      setTimeout(() => { this.onmessage?.(said); this.dispatchEvent(said); });
    }

    hear(data) {
      const inside = this.frame.contentWindow;
      setTimeout(() => inside?.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.hear(data);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
