"use strict";

function localTimes(root) {
  for (const item of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(item.dateTime);
    if (!isNaN(moment)) {
      item.title = item.textContent;
      item.textContent = moment.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    }
  }
}
localTimes(document);
