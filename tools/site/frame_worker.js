// Browsers start no Worker for a page that is opened from the disk. There, a hidden frame runs the script in its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const early = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const inside = this.frame.contentWindow;
      // what the script says comes back as an event of this object
      inside.postMessage = data => setTimeout(() => this.hear(data));
      this.deliver = data => early.push(data);
      const script = inside.document.createElement("script");
      script.src = new URL(address, document.baseURI).href;
      script.onload = () => {
        this.deliver = data => setTimeout(() => inside.dispatchEvent(new MessageEvent("message", {data})));
        early.forEach(this.deliver);
      };
      script.onerror = () => this.onerror && this.onerror(new ErrorEvent("error"));
      inside.document.head.append(script);
    }
    hear(data) {
      const event = new MessageEvent("message", {data});
      if (this.onmessage) this.onmessage(event);
      this.dispatchEvent(event);
    }
    postMessage(data) { this.deliver(data); }
    terminate() { this.frame.remove(); }
  };
}
